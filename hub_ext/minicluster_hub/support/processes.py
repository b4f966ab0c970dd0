"""Finds our processes by labels in their environment, and ends them.

A label survives a fork, a new session and the end of the parent; a process id or group does not.
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
_POLL_S = 0.03


def of_data_folder(data_dir: Path) -> Wanted:
    """Match all processes of this data folder: hub, proxy, service, servers, tasks."""
    tasks = f"{data_dir}/tasks/"

    def wanted(env: Mapping[str, str]) -> bool:
        return env.get(DATA_LABEL) == str(data_dir) or env.get(SCRATCH_LABEL, "").startswith(tasks)

    return wanted


def labelled(**labels: str) -> Wanted:
    """Match processes whose environment has all of these values."""

    def wanted(env: Mapping[str, str]) -> bool:
        return all(env.get(name) == value for name, value in labels.items())

    return wanted


def find(wanted: Wanted) -> list[psutil.Process]:
    """Return this user's running processes that match, except the caller."""
    others = (process for process in psutil.process_iter() if process.pid != os.getpid())
    return [process for process in others if matches(process, wanted)]


def matches(process: psutil.Process, wanted: Wanted) -> bool:
    """Return whether a process is this user's, running and wanted."""
    try:
        if process.uids().real != os.getuid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return wanted(process.environ())
    except (psutil.Error, OSError):
        return False


def end_all(wanted: Wanted, grace_s: float) -> int:
    """End all wanted processes by SIGTERM, and after `grace_s` by SIGKILL; return their number.

    Each round searches again, since a process may fork while it is being ended.
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
    """End one process by SIGTERM, and after `grace_s` by SIGKILL; it may have ended already."""
    signal_all([process], signal.SIGTERM)
    signal_all(wait_gone([process], grace_s), signal.SIGKILL)


def wait_gone(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until the processes have ended; return those that still run.

    A zombie counts as ended; psutil's own wait would wait until its parent reads the exit code.
    """
    deadline = time.monotonic() + timeout_s
    while (alive := [process for process in processes if lives(process)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return alive


def lives(process: psutil.Process) -> bool:
    """Return whether a process runs and is no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def signal_all(processes: Iterable[psutil.Process], number: int = signal.SIGKILL) -> None:
    """Send a signal to each of these that still runs."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def die_with_parent(parent_pid: int) -> None:
    """Make the kernel send SIGTERM when the parent ends; called in a new child before exec. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent_pid:
            # Otherwise the parent's handler would run in this copy of the parent.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
