"""Which processes are ours, told by a label in their environment, and how they are ended.

A label survives a fork, a new session and a lost parent; a process id or group does not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

DATA_LABEL = "MINICLUSTER_DATA"
SERVER_LABEL = "MINICLUSTER_SERVER"
TASK_LABEL = "MINICLUSTER_TASK"
SCRATCH_LABEL = "MINICLUSTER_SCRATCH"

Wanted = Callable[[Mapping[str, str]], bool]
_PR_SET_PDEATHSIG = 1
_LOOK_AGAIN_S = 0.03


def of_data_folder(data_dir: Path) -> Wanted:
    """Everything that belongs to this data folder: hub, proxy, service, servers, tasks."""
    tasks = f"{data_dir}/tasks/"

    def wanted(env: Mapping[str, str]) -> bool:
        return env.get(DATA_LABEL) == str(data_dir) or env.get(SCRATCH_LABEL, "").startswith(tasks)

    return wanted


def labelled(**labels: str) -> Wanted:
    """Processes whose environment holds all of these values."""

    def wanted(env: Mapping[str, str]) -> bool:
        return all(env.get(name) == value for name, value in labels.items())

    return wanted


def find(wanted: Wanted) -> list[psutil.Process]:
    """This user's living processes whose environment is wanted; never the caller itself."""
    others = (process for process in psutil.process_iter() if process.pid != os.getpid())
    return [process for process in others if matches(process, wanted)]


def matches(process: psutil.Process, wanted: Wanted) -> bool:
    """Say whether a process is this user's, alive and wanted."""
    try:
        if process.uids().real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return wanted(process.environ())
    except (psutil.Error, OSError):
        return False


def end_all(wanted: Wanted, grace_s: float) -> int:
    """End all wanted processes: SIGTERM, after `grace_s` SIGKILL; return how many were there.

    Looks again after each round, since a process may fork while it is being ended.
    """
    processes = find(wanted)
    seen = {process.pid for process in processes}
    signal_all(processes, signal.SIGTERM)
    wait_gone(processes, grace_s)
    deadline = time.monotonic() + 5.0
    while (processes := find(wanted)) and time.monotonic() < deadline:
        seen.update(process.pid for process in processes)
        signal_all(processes, signal.SIGKILL)
        wait_gone(processes, 0.5)
    return len(seen)


def end_one(process: psutil.Process, grace_s: float) -> None:
    """End a single process in the gentle way; it may be gone already."""
    signal_all([process], signal.SIGTERM)
    signal_all(wait_gone([process], grace_s), signal.SIGKILL)


def wait_gone(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until the processes have ended; return those that have not.

    One that ended is gone, also when nobody asks for its exit code: psutil's own wait would go on.
    """
    deadline = time.monotonic() + timeout_s
    while (alive := [process for process in processes if lives(process)]) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    return alive


def lives(process: psutil.Process) -> bool:
    """Whether a process is there, and more than a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def signal_all(processes: Iterable[psutil.Process], number: int = signal.SIGKILL) -> None:
    """Send a signal to each of them that is still there."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def die_with_parent(parent_pid: int) -> None:
    """Run in a new child before exec: SIGTERM when the parent is gone (Linux; else no effect)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent_pid:
            # The parent's own handler would be run here, in a copy of it.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
