"""The processes of a task: all that carry its label, whatever group or session they are in."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from minicluster_hub.support.processes import SCRATCH_LABEL, TASK_LABEL, find, labelled, wait_gone

AGENT_MODULE = "minicluster.runtime.agent.agent"
_PATIENCE_S = 10.0
_ROUND_S = 0.2


class ProcessesRemain(Exception):
    """Processes that outlive SIGKILL hang in the kernel (a dead file system, a GPU driver)."""

    def __init__(self, scratch: Path, pids: list[int]) -> None:
        super().__init__(f"processes {pids} of the task in {scratch} do not end after SIGKILL")


def tasks_alive(tasks_root: Path) -> dict[int, int | None]:
    """Return the task ids of all labelled processes alive below `tasks_root`, with the agent's pid.

    None: processes of the task are left, its agent is not.
    """

    def wanted(env: Mapping[str, str]) -> bool:
        return SCRATCH_LABEL in env and Path(env[SCRATCH_LABEL]).parent == tasks_root

    found: dict[int, int | None] = {}
    for process in find(wanted):
        with suppress(psutil.NoSuchProcess):
            task_id = int(process.environ()[TASK_LABEL])
            is_agent = AGENT_MODULE in process.cmdline()
            found[task_id] = process.pid if is_agent else found.get(task_id)
    return found


def of_task(scratch: Path) -> list[psutil.Process]:
    """Return all processes alive that carry the task's label."""
    return find(labelled(**{SCRATCH_LABEL: str(scratch)}))


def kill_task(scratch: Path) -> None:
    """Kill all processes of a task, those too that are born meanwhile. Raises ProcessesRemain."""
    deadline = time.monotonic() + _PATIENCE_S
    while found := of_task(scratch):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        wait_gone(found, _ROUND_S)
        if time.monotonic() > deadline:
            raise ProcessesRemain(scratch, [process.pid for process in found])
