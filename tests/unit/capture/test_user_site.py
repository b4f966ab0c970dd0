"""Packages in the user site become pins, and a cell's user learns which ones the ranks lack."""

from __future__ import annotations

import json
import site as python_site
from pathlib import Path
from types import SimpleNamespace

import pytest

from minicluster.capture.cell import CellSource
from minicluster.cell_run import check_site
from minicluster.options import OptionWrong
from minicluster.publishing.commands import NotPublished, packages_text
from minicluster.publishing.commands import _check as check_publishing
from minicluster.publishing.pip import failing_line
from minicluster.publishing.site import (
    NotReplayable,
    additions,
    not_in,
    notice,
    packages_beyond,
    pins,
    used_packages,
    warn_missing_packages,
)
from minicluster.wire import Image, ImageList, ImageState, Pin

from ... import messages


def installed(site: Path, name: str, version: str, *files: str, origin: object = None) -> None:
    """Write a package's files as pip does."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    if origin:
        (info / "direct_url.json").write_text(json.dumps(origin))


def cell(source: str) -> CellSource:
    return CellSource.parse(source, "Cell In[1]")


def test_what_is_not_there_adds_nothing(tmp_path: Path) -> None:
    assert pins(None) == () and pins(tmp_path) == ()


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "Tiny.Colours==1.0"),
        (
            {"url": "https://git.lab/tiny.git", "vcs_info": {"vcs": "git", "commit_id": "abc123"}},
            "Tiny.Colours @ git+https://git.lab/tiny.git@abc123",
        ),
        (
            {
                "url": "https://git.lab/all.git",
                "vcs_info": {"vcs": "git", "commit_id": "abc123"},
                "subdirectory": "tiny",
            },
            "Tiny.Colours @ git+https://git.lab/all.git@abc123#subdirectory=tiny",
        ),
        (
            {"url": "https://files.lab/tiny-1.0.whl", "archive_info": {}},
            "Tiny.Colours @ https://files.lab/tiny-1.0.whl",
        ),
    ],
)
def test_a_package_is_pinned_to_where_it_came_from(tmp_path: Path, origin: object, requirement: str) -> None:
    installed(tmp_path, "Tiny.Colours", "1.0", "tiny/__init__.py", origin=origin)
    (pin,) = pins(tmp_path)
    assert pin.requirement == requirement


@pytest.mark.parametrize(
    "origin",
    [
        {"url": "file:///home/mini/tiny", "dir_info": {"editable": True}},
        {"url": "file:///home/mini/tiny-1.0.whl", "archive_info": {}},
    ],
)
def test_what_only_this_machine_has_is_refused_by_name(tmp_path: Path, origin: object) -> None:
    installed(tmp_path, "tiny", "1.0", "tiny.py", origin=origin)
    with pytest.raises(NotReplayable, match=f"tiny {messages.INSTALLED_FROM_HERE}"):
        pins(tmp_path)


def test_a_package_goes_by_the_names_that_it_is_imported_by(tmp_path: Path) -> None:
    files = ("sklearn/__init__.py", "_fast.cpython-312.so", "one.py", "../../../bin/sk", "x.data/y")
    installed(tmp_path, "scikit-learn", "1.0", *files, "scikit_learn-1.0.dist-info/RECORD")
    (found,) = additions(tmp_path)
    assert {"sklearn", "_fast", "one"} <= found.modules
    assert not {"x", "scikit_learn-1", "bin"} & found.modules


def test_a_cell_uses_what_it_imports_and_what_the_notebooks_names_stand_for(tmp_path: Path) -> None:
    installed(tmp_path, "imported", "1.0", "imported.py")
    installed(tmp_path, "named", "1.0", "json/__init__.py")
    installed(tmp_path, "unused", "1.0", "unused.py")
    source = "def f():\n    import imported.part\nmodule.dumps(1)"
    there = additions(tmp_path)
    used = used_packages(cell(source), {"module": json, "other": 1}, there)
    assert [one.name for one in used] == ["imported", "named"]
    of_a_value = used_packages(cell("value.decode('1')"), {"value": json.JSONDecoder()}, there)
    assert [one.name for one in of_a_value] == ["named"]


def test_what_the_image_has_in_this_version_is_not_lacking(tmp_path: Path) -> None:
    for name in ("tiny-a", "tiny-b", "tiny-c"):
        installed(tmp_path, name, "1.0", f"{name[-1]}.py")
    image = (Pin(name="Tiny_A", version="1.0"), Pin(name="tiny-b", version="0.9"))
    lacking = not_in(additions(tmp_path), image)
    assert [one.name for one in lacking] == ["tiny-b", "tiny-c"]
    assert notice(lacking).startswith(
        f"tiny-b, tiny-c were installed with pip here, the {messages.RANKS_LACK}"
    )


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["Looking\n", "ERROR: No such thing (from versions: none)\n", "ERROR: Later\n"], "No such thing"),
        (["  error: subprocess-exited-with-error\n", "last\n"], "subprocess-exited-with-error"),
        (["Killed\n", "\n"], "Killed"),
        ([], "without a word"),
    ],
)
def test_pips_own_line_is_the_first_that_says_error(lines: list[str], told: str) -> None:
    assert told in failing_line(lines)


def test_a_virtual_environment_outside_of_the_cluster_has_nothing_for_sync_env(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(python_site, "ENABLE_USER_SITE", False)
    with pytest.raises(OptionWrong, match=r"--sync-env installs for the ranks what pip put into ~/.local"):
        check_site(SimpleNamespace(outside=True))  # type: ignore[arg-type]
    check_site(SimpleNamespace(outside=False))  # type: ignore[arg-type]


def test_a_list_that_leaves_packages_out_has_the_image_asked_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path, "tiny-b", "1.0", "tiny_b.py")
    installed(tmp_path, "tiny-c", "1.0", "tiny_c.py")
    pins_of = [Pin(name="tiny-a", version="1.0"), Pin(name="tiny-b", version="1.0")]
    digest = f"sha256:{'a' * 64}"
    whole = Image(digest=digest, name="x", reference="r", state=ImageState.ALLOWED, packages=tuple(pins_of))
    short = whole.model_copy(update={"packages": (pins_of[0],), "more_packages": 1})
    answers = {f"api/images/{digest}": SimpleNamespace(content=whole.model_dump_json())}
    service = SimpleNamespace(
        images=lambda: ImageList(images=(short,)), ask=lambda _method, path: answers[path]
    )
    monkeypatch.setattr(python_site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(python_site, "USER_SITE", str(tmp_path))
    lacking = packages_beyond("x", service)  # type: ignore[arg-type]
    warn_missing_packages(cell("import tiny_b, tiny_c"), {}, lacking)
    assert capsys.readouterr().out.startswith("tiny-c was installed with pip here")
    assert packages_text(short) == "tiny-a 1.0 and 1 more"
    assert packages_text(short.model_copy(update={"packages": ()})) == "and 1 more"
    assert packages_text(whole) == "tiny-a 1.0, tiny-b 1.0"


def test_more_packages_than_an_image_takes_are_refused_before_the_job() -> None:
    pin = Pin(name="tiny", version="1.0")
    with pytest.raises(NotPublished, match="2001 packages were installed here with pip; an image takes 2000"):
        check_publishing("vision", "base", (pin,) * 2001, SimpleNamespace(outside=False))  # type: ignore[arg-type]
