"""A user's options for a notebook server, from the form or by REST, checked in one place."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster_spawner import form
from minicluster_spawner.options import GB, Allowed, OptionRefused, from_form, parse

ALLOWED = Allowed(
    images={"CPU": "127.0.0.1:5100/minicluster/notebook@sha256:aa", "Lab": "127.0.0.1:5101/lab@sha256:bb"},
    image="CPU",
    cpus=2.0,
    max_cpus=8.0,
    memory_bytes=4 * GB,
    max_memory_bytes=16 * GB,
    max_gpus=2,
    max_gpu_s=4 * 3600.0,
)
FIXED = Allowed(images={"default": "image"}, image="default")


def test_nothing_chosen_is_the_defaults() -> None:
    choice = parse({}, ALLOWED)
    assert (choice.image_name, choice.image) == ("CPU", ALLOWED.images["CPU"])
    assert (choice.cpus, choice.memory_bytes, choice.node) == (2.0, 4 * GB, None)
    assert (choice.gpus, choice.gpu_s, choice.new_home) == (0, None, False)


def test_without_limits_there_is_nothing_to_choose() -> None:
    choice = parse({}, FIXED)
    assert (choice.cpus, choice.memory_bytes) == (None, None)
    with pytest.raises(OptionRefused, match="leave cpus out"):
        parse({"cpus": 1}, FIXED)


def test_a_most_without_a_default_is_the_default() -> None:
    choice = parse({}, dataclasses.replace(ALLOWED, cpus=None, memory_bytes=None))
    assert (choice.cpus, choice.memory_bytes) == (8.0, 16 * GB)


def test_a_form_and_rest_say_the_same() -> None:
    submitted = {
        "image": ["Lab"],
        "cpus": ["4"],
        "memory_gb": ["0.5"],
        "node": [""],
        "gpus": ["1"],
        "gpu_hours": ["0.5"],
        "_xsrf": ["2|abc"],
    }
    by_rest = {"image": "Lab", "cpus": 4, "memory_gb": 0.5, "node": None, "gpus": 1, "gpu_hours": 0.5}
    choice = parse(from_form(submitted), ALLOWED)
    assert choice == parse(by_rest, ALLOWED)
    assert (choice.cpus, choice.memory_bytes, choice.gpus, choice.gpu_s) == (4.0, GB // 2, 1, 1800.0)


def test_a_gpu_without_a_time_has_the_longest() -> None:
    assert parse({"gpus": 2}, ALLOWED).gpu_s == 4 * 3600.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": "127.0.0.1:5100/other"}, "Images: CPU, Lab"),
        ({"image": ["CPU"]}, "Images: CPU, Lab"),
        ({"cpus": 9}, "from 0.1 to 8 CPUs"),
        ({"cpus": 0}, "from 0.1 to 8 CPUs"),
        ({"cpus": "many"}, "cpus must be a number"),
        ({"cpus": True}, "cpus must be a number"),
        ({"cpus": "nan"}, "cpus must be a number"),
        ({"cpus": 10**400}, "cpus must be a number"),
        ({"memory_gb": 17}, "from 0.25 to 16 GB"),
        ({"memory_gb": "-inf"}, "memory_gb must be a number"),
        ({"node": "pc-1; rm"}, "node is not a node's name"),
        ({"node": 3}, "node is not a node's name"),
        ({"gpus": 3}, "from 0 to 2 GPUs"),
        ({"gpus": 0.5}, "whole number"),
        ({"gpus": -1}, "from 0 to 2 GPUs"),
        ({"gpus": 1, "gpu_hours": 5}, "to 4 hours"),
        ({"new_home": "perhaps"}, "true or false"),
        ({"user": "root", "mounts": []}, "no option mounts, user. Options: image, cpus"),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_is(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionRefused, match=words):
        parse(options, ALLOWED)


def test_half_a_gpu_where_the_lab_shares_them() -> None:
    shares = dataclasses.replace(ALLOWED, half_gpus=True, max_gpus=0.5)
    assert parse({"gpus": "0.5"}, shares).gpus == 0.5
    for gpus in (1, 0.25):
        with pytest.raises(OptionRefused):
            parse({"gpus": gpus}, shares)
    page = form.render(shares, ["pc-1"], {})
    assert '<option value="0.5">Half of one</option>' in page and '<option value="1">' not in page
    assert "Half of one" not in form.render(ALLOWED, ["pc-1"], {})


def test_gpus_are_for_jobs_unless_the_lab_allows_them() -> None:
    with pytest.raises(OptionRefused, match="%%distribute"):
        parse({"gpus": 1}, FIXED)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELD_NAMES = ["image", "cpus", "memory_gb", "node", "gpus", "gpu_hours", "new_home", "other"]


@given(st.dictionaries(st.sampled_from(FIELD_NAMES), JSON))
def test_any_body_is_a_choice_within_the_limits_or_refused(options: dict[str, object]) -> None:
    try:
        choice = parse(options, ALLOWED)
    except OptionRefused:
        return
    assert choice.image in ALLOWED.images.values()
    assert 0 < (choice.cpus or 1) <= 8 and 0 < (choice.memory_bytes or 1) <= 16 * GB
    assert 0 <= choice.gpus <= 2 and (choice.gpu_s or 0) <= 4 * 3600


# --- the form ------------------------------------------------------------------------------------


def test_the_form_has_the_defaults_selected_and_asks_for_no_gpu() -> None:
    page = form.render(ALLOWED, ["pc-1", "pc-2"], {})
    assert '<option value="CPU" selected>' in page and '<option value="2.0" selected>2<' in page
    assert '<option value="4.0" selected>4 GB<' in page and '<option value="">Automatic' in page
    assert '<option value="0" selected>None' in page and "at most 4 h" in page
    assert "new_home" not in page


def test_the_form_remembers_what_is_still_allowed() -> None:
    page = form.render(ALLOWED, ["pc-1"], {"image": "gone", "cpus": "4", "node": "pc-1", "gpus": 2})
    assert '<option value="CPU" selected>' in page and '<option value="4.0" selected>4<' in page
    assert '<option value="pc-1" selected>' in page and '<option value="0" selected>None' in page


def test_the_form_shows_only_choices() -> None:
    page = form.render(FIXED, [], {})
    assert "image" not in page and "cpus" not in page and "gpus" not in page and 'name="node"' in page


def test_the_form_escapes_names() -> None:
    evil = '"><script>alert(1)</script>'
    allowed = dataclasses.replace(ALLOWED, images={evil: "a", "b": "b"}, image=evil)
    page = form.render(allowed, [evil], {"node": evil, "image": evil})
    assert "<script" not in page and "&lt;script&gt;" in page


def test_a_lost_home_is_asked_about() -> None:
    assert 'name="new_home"' in form.render(FIXED, [], {}, home_lost=True)


@given(st.floats(0.1, 200), st.floats(1, 2000))
def test_every_value_of_the_form_is_allowed(max_cpus: float, memory_gb: float) -> None:
    allowed = Allowed({"a": "a"}, "a", max_cpus=max_cpus, max_memory_bytes=int(memory_gb * GB))
    page = form.render(allowed, [], {})
    for line in page.splitlines():
        if 'id="' in line and "select" in line:
            field = line.split('name="')[1].split('"')[0]
        elif "<option" in line and field in ("cpus", "memory_gb"):
            parse({field: line.split('value="')[1].split('"')[0]}, allowed)
