"""Runs what is timed before all else: what else runs on this machine would be in some times only."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_LOOK_S = 0.02


def run_first(pid: int | None = None) -> None:
    """Let a process that leads its session come before other sessions. Needs root.

    Not in real time: the threads of a rank would then wait for one another for whole slices of 100 ms.
    """
    with suppress(OSError):
        Path("/proc", str(pid or "self"), "autogroup").write_text("-19")


@contextmanager
def network_first() -> Iterator[None]:
    """Let the kernel's threads for the network come before what runs first: they would starve."""
    threads = [one.pid for one in psutil.process_iter(["name"]) if one.info["name"].startswith("ksoftirqd")]
    try:
        for pid in threads:
            os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(2))
        yield
    finally:
        for pid in threads:
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def timed_ranks_first() -> Iterator[None]:
    """Let the first virtual rank of each dry run, which is timed, run first."""
    over = threading.Event()
    thread = threading.Thread(target=_promote, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _promote(over: threading.Event) -> None:
    known: set[int] = set()
    while not over.wait(_LOOK_S):
        for dry_run in psutil.Process().children():
            with suppress(psutil.Error, ProcessLookupError):
                ranks = [] if dry_run.pid in known else dry_run.children()
                # Before it leads a session of its own, it would be the dry run's that comes first.
                if ranks and os.getsid(ranks[0].pid) == ranks[0].pid:
                    known.add(dry_run.pid)
                    run_first(ranks[0].pid)
