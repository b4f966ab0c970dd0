"""Finding and killing the processes of a task by the label in their environment.

A label is inherited by whatever a task starts, so that also what left its process group is found.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

TASK_LABEL = "MINICLUSTER_TASK"
SCRATCH_LABEL = "MINICLUSTER_SCRATCH"
AGENT_MODULE = "minicluster.runtime.agent"
_PATIENCE_S = 10.0


class ProcessesRemain(Exception):
    """Processes that outlive SIGKILL hang in the kernel (a dead file system, a GPU driver)."""

    def __init__(self, scratch: Path, pids: list[int]) -> None:
        super().__init__(f"processes {pids} of the task in {scratch} do not end after SIGKILL")


def tasks_alive(tasks_root: Path) -> dict[int, int | None]:
    """Return the task ids of all labelled processes alive below `tasks_root`, with the agent's pid.

    None: processes of the task are left, its agent is not.
    """
    found: dict[int, int | None] = {}
    for process in psutil.process_iter(["environ", "cmdline", "status"]):
        labels = process.info["environ"] or {}
        scratch = labels.get(SCRATCH_LABEL)
        if scratch is None or Path(scratch).parent != tasks_root or _is_dead(process):
            continue
        is_agent = AGENT_MODULE in (process.info["cmdline"] or ())
        task_id = int(labels[TASK_LABEL])
        found[task_id] = process.pid if is_agent else found.get(task_id)
    return found


def of_task(scratch: Path) -> list[psutil.Process]:
    """Return all processes alive that carry the task's label."""
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if (process.info["environ"] or {}).get(SCRATCH_LABEL) == str(scratch) and not _is_dead(process)
    ]


def _is_dead(process: psutil.Process) -> bool:
    return process.info["status"] in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def kill_task(scratch: Path) -> None:
    """Kill all processes of a task, those too that are born meanwhile. Raises ProcessesRemain."""
    deadline = time.monotonic() + _PATIENCE_S
    while found := of_task(scratch):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(found, timeout=0.2)
        if time.monotonic() > deadline:
            raise ProcessesRemain(scratch, [process.pid for process in found])
