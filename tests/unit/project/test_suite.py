"""`./test` and its tests: the order and reasons of marks, and the final report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ...patience import until
from ...suite import report, runs
from ...suite.parts import LINTERS
from ...suite.runs import WAIT_FOR_ENV, Runs

MARKED = """
import os, time, pathlib, pytest
ENDED = pathlib.Path(os.environ["WAIT_FOR_ENV"])

@pytest.mark.alone("it measures")
def test_measures():
    assert ENDED.exists()

@pytest.mark.full("for the test of the suite")
def test_of_full_only():
    raise AssertionError

def test_that_is_slow():
    time.sleep(0.3)
    ENDED.touch()
""".replace("WAIT_FOR_ENV", WAIT_FOR_ENV)

ENDED_CLEANLY = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    pathlib.Path("{0}/began").touch()
    time.sleep(60)
finally:
    pathlib.Path("{0}/cleared").touch()
"""


def run_pytest(tree: Path, folder: Path, source: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run tests with tests/conftest.py."""
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", *words]
    return subprocess.run(
        [*command, str(folder / "test_it.py"), f"--junitxml={folder / 'it.xml'}"],
        cwd=tree,
        env={**os.environ, WAIT_FOR_ENV: str(folder / "ended")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full("it runs parts of this suite")
def test_what_wants_to_be_alone_waits_until_the_others_have_ended(tree: Path, tmp_path: Path) -> None:
    done = run_pytest(tree, tmp_path, MARKED, "-m", "not full")
    assert done.returncode == 0 and "2 passed, 1 deselected" in done.stdout, done.stdout + done.stderr


def test_a_mark_without_its_reason_is_refused(tree: Path, tmp_path: Path) -> None:
    done = run_pytest(tree, tmp_path, "import pytest\n@pytest.mark.full\ndef test_it(): pass\n")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_it: @pytest.mark.full wants" in done.stdout + done.stderr


@pytest.mark.full("it collects this suite")
def test_no_test_is_both_alone_and_apart(tree: Path, tmp_path: Path) -> None:
    marks = "@pytest.mark.alone('it measures')\n@pytest.mark.apart('its own machines')\n"
    done = run_pytest(tree, tmp_path, f"import pytest\n{marks}def test_it(): pass\n")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_it: what runs apart runs beside others" in done.stdout + done.stderr


def test_the_report_names_the_slowest_and_the_failed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_pytest(tree, tmp_path, MARKED)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert len(report.slowest(count=2).splitlines()) == 3
    rows = [line.split() for line in report.slowest(count=3).splitlines()[1:]]
    totals = [float(row[0]) for row in rows]
    assert totals == sorted(totals, reverse=True)
    (slow,) = (row for row in rows if row[-1].endswith("test_that_is_slow"))
    total, setup, call, teardown = map(float, slow[:4])
    assert call >= 0.3 and total == pytest.approx(setup + call + teardown, abs=0.2)
    failed, why = report.failures()
    assert failed.endswith("test_of_full_only") and why.strip() == "AssertionError"


def test_pre_commit_checks_what_the_gate_checks_first(tree: Path) -> None:
    (repository,) = yaml.safe_load((tree / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {hook["id"]: hook["entry"] for hook in repository["hooks"]}
    assert hooks == {name: f".venv/bin/{' '.join(arguments)}" for name, arguments in LINTERS.items()}


def fake(monkeypatch: pytest.MonkeyPatch, folder: Path, parts: dict[str, str]) -> Runs:
    """Return a Runs object whose parts are these programs."""
    monkeypatch.setattr(runs, "LINTERS", {})
    monkeypatch.setattr(runs, "OTHERS_ENDED", folder / "others-ended")
    monkeypatch.setattr(runs, "log_file", lambda name: folder / f"{name}.log")

    def step(_self: Runs, name: str, *_: object, **_more: object) -> runs.PartProgram:
        return runs.PartProgram(name, [sys.executable, "-c", parts.get(name, "")])

    monkeypatch.setattr(Runs, "_pytest", step)
    return Runs([])


def test_a_part_that_fails_is_named_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = fake(monkeypatch, tmp_path, {"unit": "raise SystemExit(1)"})
    made.whole_part("unit")
    made.whole_part("hub")
    assert made.failed == ["unit"]
    assert [line.split()[0] for line in made.times().splitlines()] == ["part", "unit", "hub"]


def test_lanes_run_beside_each_other_and_the_lab_is_told_when_they_have_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wait = "import os, pathlib, time\nwhile not pathlib.Path({}).exists(): time.sleep(0.02)\n"
    meet = "import pathlib; pathlib.Path({!r}).touch()\n" + wait
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    made = fake(
        monkeypatch,
        tmp_path,
        {
            "service": meet.format(one, repr(other)),
            "hub": meet.format(other, repr(one)),
            "lab": wait.format(f"os.environ[{WAIT_FOR_ENV!r}]") + "print('lab is alone')",
        },
    )
    made.everything(full=False)
    assert made.failed == []
    assert "lab is alone" in capfd.readouterr().out
    names = [line.split()[0] for line in made.times().splitlines()[1:]]
    assert names.index("lab") > names.index("hub"), names
    assert all(name.endswith("-alone") for name in names[names.index("lab") + 1 :]), names


def test_ended_from_outside_the_parts_are_ended_too(tmp_path: Path, tree: Path) -> None:
    code = (
        "import sys, signal\n"
        "from tests.suite.runs import PartProgram, Runs\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        f"sleep = {ENDED_CLEANLY!r}.format({str(tmp_path)!r})\n"
        "Runs([])._run(PartProgram('it', [sys.executable, '-c', sleep]), shown_at_once=True)\n"
    )
    environment = {**os.environ, "MINICLUSTER_TEST_RESULTS": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tree, env=environment) as process:
        until(lambda: (tmp_path / "began").exists())
        process.terminate()
        assert process.wait(60) == 143
    assert (tmp_path / "cleared").exists()
