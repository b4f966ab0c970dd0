"""Processes are identified by their label, and ended with all their children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from minicluster_hub.support.processes import (
    DATA_LABEL,
    SCRATCH_LABEL,
    die_with_parent,
    end_all,
    end_one,
    find,
    labelled,
    of_data_folder,
    signal_all,
)

from ...patience import WITHIN_S, until

PATIENCE_S = 5.0
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data folder for this test's processes; at the end, all with it in their environment are killed."""
    folder = tmp_path / uuid4().hex
    yield folder
    signal_all(find(of_data_folder(folder)))


def start(code: str, **labels: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **labels}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_processes_of_this_folder_are_found(data: Path) -> None:
    waiting = "import time; print(1, flush=True); time.sleep(60)"
    ours = start(waiting, **{DATA_LABEL: str(data)})
    task = start(waiting, **{SCRATCH_LABEL: f"{data}/tasks/7"})
    other = start(waiting, **{DATA_LABEL: f"{data}2", SCRATCH_LABEL: f"{data}2/tasks/7"})
    try:
        assert {process.pid for process in find(of_data_folder(data))} == {ours.pid, task.pid}
        assert end_all(of_data_folder(data), 5.0) == 2
        assert other.poll() is None
    finally:
        for process in (ours, task, other):
            process.kill()
            process.wait()


def test_the_caller_never_finds_itself(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from pathlib import Path; from minicluster_hub.support.processes import *\n"
        f"print(len(find(of_data_folder(Path({str(data)!r})))))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, DATA_LABEL: str(data)},
        capture_output=True,
        text=True,
    )
    assert result.stdout.strip() == "0", result.stderr


def test_what_ignores_sigterm_is_killed(data: Path) -> None:
    process = start(STUBBORN, **{DATA_LABEL: str(data)})
    assert end_all(of_data_folder(data), 0.3) == 1
    assert process.wait(WITHIN_S) == -9


def test_a_single_process_is_killed_when_it_does_not_listen(data: Path) -> None:
    process = start(STUBBORN, **{DATA_LABEL: str(data)})
    end_one(psutil.Process(process.pid), 0.3)
    assert process.wait(WITHIN_S) == -9


def test_what_left_its_session_and_parent_is_found_and_ended(data: Path) -> None:
    code = (
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        "print(child.pid, flush=True)"
    )
    start(code, **{DATA_LABEL: str(data)}).wait(10)
    assert len(find(of_data_folder(data))) == 1
    started = time.monotonic()
    assert end_all(of_data_folder(data), PATIENCE_S) == 1
    assert time.monotonic() - started < PATIENCE_S, "a zombie that nobody reaps must not be waited for"
    assert not find(of_data_folder(data))


def test_a_child_dies_with_its_parent(data: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "from minicluster_hub.support.processes import die_with_parent\n"
        "me = os.getpid()\n"
        "subprocess.Popen(['sleep', '60'], preexec_fn=lambda: die_with_parent(me))\n"
        "print(1, flush=True); time.sleep(60)"
    )
    parent = start(code, **{DATA_LABEL: str(data)})
    assert len(find(of_data_folder(data))) == 2
    parent.kill()
    parent.wait()
    until(lambda: not find(of_data_folder(data)))


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # Like a launcher.
    nobody = 2**22 - 1
    try:
        process = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: die_with_parent(nobody))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert process.wait(WITHIN_S) == -15


def test_all_labels_must_fit(data: Path) -> None:
    process = start(STUBBORN, **{DATA_LABEL: str(data), "MINICLUSTER_SERVER": "ada/"})
    try:
        assert find(labelled(MINICLUSTER_DATA=str(data), MINICLUSTER_SERVER="ada/"))
        assert not find(labelled(MINICLUSTER_DATA=str(data), MINICLUSTER_SERVER="grace/"))
    finally:
        process.kill()
        process.wait()
