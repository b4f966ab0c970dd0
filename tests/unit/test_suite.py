"""What `./test` promises about its tests: the marks' order, their reasons, and the report at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..suite import report
from ..suite.runs import WAIT_FOR_ENV, Runs

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


def run_pytest(tree: Path, folder: Path, source: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run tests with the conftest of all tests."""
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


def test_what_wants_to_be_alone_waits_until_the_others_have_ended(tree: Path, tmp_path: Path) -> None:
    done = run_pytest(tree, tmp_path, MARKED, "-m", "not full")
    assert done.returncode == 0 and "2 passed, 1 deselected" in done.stdout, done.stdout + done.stderr


def test_a_mark_without_its_reason_is_refused(tree: Path, tmp_path: Path) -> None:
    done = run_pytest(tree, tmp_path, "import pytest\n@pytest.mark.full\ndef test_it(): pass\n")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_it: @pytest.mark.full wants a reason" in done.stdout + done.stderr


def test_the_report_names_the_slowest_and_the_failed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_pytest(tree, tmp_path, MARKED)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    table = report.slowest(count=2).splitlines()
    assert len(table) == 3 and table[1].endswith("test_that_is_slow")
    total, setup, call, teardown = map(float, table[1].split()[:4])
    assert call >= 0.3 and total == pytest.approx(setup + call + teardown, abs=0.2)
    (failed,) = report.failures()
    assert failed.endswith("test_of_full_only")


def test_a_part_that_fails_is_named_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"bad": "raise SystemExit(1)", "good": "sum(range(10**6))"}
    monkeypatch.setattr(
        Runs, "_pytest", lambda _self, name, *_: [sys.executable, "-c", words[name]], raising=True
    )
    with Runs([]) as runs:
        runs.whole_part("bad")
        runs.whole_part("good")
    assert runs.failed == ["bad"]
    assert [line.split()[0] for line in runs.times().splitlines()] == ["part", "bad", "good"]
