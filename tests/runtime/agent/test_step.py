"""An agent that gets its secrets by standard input, as a step of a batch system: what others see and find."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from minicluster.runtime.step import AGENT, clear_left_behind, environment_of, make_private

from ...patience import WITHIN_S, until

TOKEN, BEGUN = "not-for-other-eyes", "it has begun"


@pytest.fixture
def step(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A step whose agent finds no job service, and goes on trying."""
    environment = {
        "MINICLUSTER_SERVICE_URL": "http://127.0.0.1:1/",
        "MINICLUSTER_NODE": "n1",
        "MINICLUSTER_SLOTS": "0",
        "MINICLUSTER_TASK": "7",
        "MINICLUSTER_SCRATCH": str(tmp_path / "scratch"),
        "MINICLUSTER_MEMORY": str(tmp_path / "memory" / "snapshots"),
    }
    given = {"token": TOKEN, "environment": environment, "folder": str(tmp_path), "begun": BEGUN}
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "minicluster.runtime.step"],
            env={**os.environ, "SLURM_NTASKS": "1", "SLURM_JOB_ID": "12"},
            stdin=subprocess.PIPE,
            stdout=output,
        )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(json.dumps(given).encode())
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(WITHIN_S)


def agent_of(step: subprocess.Popen[bytes]) -> psutil.Process:
    return until(lambda: next((one for one in children(step) if AGENT in one.cmdline()), None))


def children(step: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(step.pid).children(recursive=True)


def test_others_see_no_token_and_the_users_files_are_the_users(
    step: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    agent = agent_of(step)
    shown = f"{agent.environ()} {agent.cmdline()} {psutil.Process(step.pid).cmdline()}"
    assert TOKEN not in shown
    token = Path(agent.environ()["MINICLUSTER_TOKEN_FILE"])
    assert token.read_text() == TOKEN and token.stat().st_mode & 0o777 == 0o600
    assert token.parent == tmp_path / "scratch"
    for name in ("scratch", "memory"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
    assert "SLURM_NTASKS" not in agent.environ() and agent.environ()["SLURM_JOB_ID"] == "12"
    assert agent.cwd() == agent.environ()["HOME"] == str(tmp_path)
    assert (tmp_path / "output").read_text().splitlines()[0] == BEGUN


@pytest.mark.parametrize("ended", ["by SIGTERM", "by itself"])
def test_nothing_is_left_of_a_step_that_ends(
    step: subprocess.Popen[bytes], tmp_path: Path, ended: str
) -> None:
    agent = agent_of(step)
    until(lambda: len(children(step)) > 1)  # its zygote
    below = children(step)
    if ended == "by SIGTERM":
        step.terminate()
    else:
        agent.kill()
    code = step.wait(WITHIN_S)
    assert code in (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
    assert not [one for one in below if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not (tmp_path / "scratch").exists() and not (tmp_path / "memory").exists()


def test_a_folder_that_a_killed_task_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "old").touch()
    os.close(make_private(tmp_path / "scratch"))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_killed_tasks_left_behind_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left, running, young = (f"minicluster-{number}-0123456789abcdef" for number in range(3))
    os.close(make_private(tmp_path / left))  # A killed task's lock ends with it.
    lock = make_private(tmp_path / running)
    (tmp_path / "minicluster-notes").mkdir()
    clear_left_behind(tmp_path, time.time() + 3600.0)
    os.close(make_private(tmp_path / young))
    clear_left_behind(tmp_path, time.time())
    os.close(lock)
    assert {path.name for path in tmp_path.iterdir()} == {running, young, "minicluster-notes"}


def test_libraries_do_not_take_a_step_for_their_world() -> None:
    of_the_step = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "PMI_RANK": "0"}
    inherited = {**of_the_step, "SLURM_JOB_ID": "1", "PATH": "/bin"}
    found = environment_of({"MINICLUSTER_NODE": "n1"}, inherited)
    assert {name: found[name] for name in ("SLURM_JOB_ID", "PATH", "MINICLUSTER_NODE")} == {
        "SLURM_JOB_ID": "1",
        "PATH": "/bin",
        "MINICLUSTER_NODE": "n1",
    }
    assert not found.keys() & of_the_step.keys() and found["HOME"]
