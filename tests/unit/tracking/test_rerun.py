"""The cell that repeats a run, and what it says is not as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minicluster.options import parse_cell_line
from minicluster.tracking.rerun import Present, SourceUnknown, cell_again, differences
from minicluster.tracking.rerun_trial import as_cell, trial_differences
from minicluster.wire import (
    DataSet,
    DataSetEarlier,
    DataUse,
    GitCommit,
    JobState,
    Run,
    RunDetails,
    RunOrigin,
    SentName,
)
from minicluster.wire.sweeps.sweeps import Trial, TrialState

DIGEST = f"sha256:{'a' * 64}"
NOW = Present(frozenset({DIGEST}), (), {"model": 1, "lr": 0.1}, None)


def details(line: str = "", source: str = "train()\n", **more: Any) -> RunDetails:
    run = Run(id=67, owner="ada", name="quickstart [3]", state=JobState.SUCCEEDED, created_at=1.0)
    origin = more.pop("origin", {})
    return RunDetails(run=run, origin=RunOrigin(source=source, line=line, **origin), **more)


def test_a_cell_comes_again_with_its_options() -> None:
    text = cell_again(details("--nodes 3 --name 'my run'  # a note"), NOW)
    first, source = text.split("\n", 1)
    assert source == "train()\n"
    options = parse_cell_line(first.removeprefix("%%distribute "))
    assert (options.name, options.rerun_of) == ("my run", 67)
    assert options.nodes is not None
    assert options.nodes.max == 3


def test_a_rerun_of_a_rerun_names_the_last_one_only() -> None:
    text = cell_again(details("--rerun-of 5 --nodes 2 --rerun-of=6"), NOW)
    assert text.split("\n")[0] == "%%distribute --nodes 2 --rerun-of 67"


@pytest.mark.parametrize(
    ("image", "name", "written"),
    [
        (DIGEST, "torch-2", f"torch-2@{DIGEST}"),
        (DIGEST, "", DIGEST),
        (f"lab/torch@{DIGEST}", "torch", f"lab/torch@{DIGEST}"),
    ],
)
def test_its_image_is_named_by_its_digest(image: str, name: str, written: str) -> None:
    text = cell_again(details("--image torch-2 --nodes 1", image=image, image_name=name), NOW)
    assert text.split("\n")[0] == f"%%distribute --nodes 1 --image {written} --rerun-of 67"


def test_an_image_that_is_not_offered_any_more_is_told() -> None:
    old = details("--image torch-2", image=f"sha256:{'b' * 64}", image_name="torch-2")
    assert cell_again(old, NOW).startswith("%%distribute --image torch-2 --rerun-of 67\n")
    assert any("image torch-2 is not offered any more" in one for one in differences(old, NOW))


def test_a_seed_is_written_once() -> None:
    assert cell_again(details("--seed 7", seed=7), NOW).count("--seed") == 1
    assert "--seed 7" in cell_again(details("", seed=7), NOW)
    assert list(differences(details("", seed=7), NOW)) == []
    assert "random numbers" in "".join(differences(details(""), NOW))


def test_a_script_comes_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    origin = {"script": str(script)}
    line = f"--nodes 3 {script} --seed 1 'two words'"
    run = details(line, "print(1)\n", origin=origin, seed=7)
    written = f"%distribute run --nodes 3 --seed 7 --rerun-of 67 {script} --seed 1 'two words'"
    assert cell_again(run, NOW) == written
    assert list(differences(run, NOW)) == []
    script.write_text("print(2)\n")
    assert "has another text now" in "".join(differences(run, NOW))


def test_data_names_packages_and_commits_that_differ_are_told() -> None:
    use = DataUse(name="bob/mnist", owner="bob", manifest_sha256="a" * 64)
    gone = DataUse(name="own", owner="ada", manifest_sha256="a" * 64)
    sent = (SentName(name="model", type="torch.nn.Linear"), SentName(name="loader", type="list"))
    origin = {
        "names": sent,
        "packages": {"no-such-package": "1.0", "python": "3.1"},
        "commit": GitCommit(commit="a" * 40, changed=2),
    }
    run = details(origin=origin, data=(use, gone), seed=1)
    now = DataSet(
        name="mnist",
        owner="bob",
        manifest_sha256="b" * 64,
        files=1,
        size_bytes=1,
        shared=True,
        created_at=1.0,
    )
    present = replace(NOW, data=(now,), commit=GitCommit(commit="b" * 40))
    assert list(differences(run, present)) == [
        "The data set bob/mnist has changed: the run read version aaaaaaaaaa, which is not "
        "kept any more; the cell will read bbbbbbbbbb.",
        "The data set own is not there any more.",
        "The notebook has no loader: run the cells that make them first.",
        "`model` was torch.nn.Linear then; it is int now.",
        "no-such-package was 1.0 then; it is not installed here now.",
        "The folder is at commit bbbbbbbbbb; then it was at aaaaaaaaaa.",
        "2 files differed from that commit then.",
    ]


def test_data_sets_come_in_the_versions_that_the_run_read() -> None:
    now = DataSet(
        name="mnist",
        owner="bob",
        manifest_sha256="b" * 64,
        files=1,
        size_bytes=1,
        shared=True,
        created_at=1.0,
        earlier=(DataSetEarlier(manifest_sha256="a" * 64, size_bytes=1, read_at=1.0),),
    )
    present = replace(NOW, data=(now,))
    uses = {
        version: DataUse(name="bob/mnist", owner="bob", manifest_sha256=version * 64) for version in "abc"
    }
    for version, written in {"a": f"@{'a' * 12}", "b": f"@{'b' * 12}", "c": ""}.items():
        run = details("--data bob/mnist --nodes 1", data=(uses[version],), seed=1)
        first = cell_again(run, present).split("\n")[0]
        assert first == f"%%distribute --nodes 1 --data bob/mnist{written} --seed 1 --rerun-of 67"
        (use,) = parse_cell_line(first.removeprefix("%%distribute ")).data
        assert (use.name, use.manifest_sha256) == ("bob/mnist", written[1:])
        assert len(list(differences(run, present))) == (version == "c")


def test_a_line_that_this_release_does_not_know_is_told() -> None:
    with pytest.raises(SourceUnknown, match="not understood"):
        cell_again(details("--name 'open"), NOW)


def test_a_trial_comes_again_as_a_cell_with_its_parameters() -> None:
    line = "--trials 40 --metric=val_loss --minimize --nodes 1:3 --search tpe --name digits"
    trial = Trial(
        number=4,
        job=67,
        state=TrialState.PRUNED,
        step=30.0,
        params={"lr": 0.0042, "optimizer": "Adam"},
        created_at=1.0,
    )
    first, fixed, source = cell_again(as_cell(details(line), trial), NOW).split("\n", 2)
    assert first == "%%distribute --nodes 1:3 --name digits --rerun-of 67"
    assert fixed.startswith(
        "import minicluster as mc; mc.fix_parameters({'lr': 0.0042, 'optimizer': 'Adam'})"
    )
    assert source == "train()\n"
    assert list(trial_differences(trial)) == ["The sweep pruned it at step 30; the cell goes on to its end."]
    alone = cell_again(as_cell(details("--metric val_loss"), trial), NOW)
    assert alone.startswith("%%distribute --nodes 1 --rerun-of 67\n"), "a trial has one node by default"
