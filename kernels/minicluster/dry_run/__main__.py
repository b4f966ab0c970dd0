"""A dry run's own process: imports torch once, then runs one virtual rank after the other in forks of it.

It is started by the notebook's kernel with the task's file, and ends with it. How each rank ended is written
beside the task, one file for each turn. What ranks print is printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from minicluster.dry_run.measured import Ended, RankFindings
from minicluster.dry_run.task import DryRunTask
from minicluster.runtime import system
from minicluster.runtime.agent import task_limits
from minicluster.runtime.agent.errors import RankEnd, failure_of
from minicluster.runtime.paths import write_whole
from minicluster.runtime.rank import zygote

_LOOK_S = 0.02
HERE = "this notebook's machine"


def main(path: Path) -> None:
    system.die_with_parent(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = DryRunTask.model_validate_json(path.read_bytes())
    zygote.preload()
    from minicluster.dry_run import rank  # noqa: F401 - once, for all of them

    for turn in range(len(task.ranks)):
        findings = run_turn(task, turn)
        if findings.ended is Ended.ERROR and task.plan_of(turn).traced:
            # Few cells cannot be traced; that is not their error.
            findings = run_turn(task.model_copy(update={"traces": False}), turn)
        write_whole(task.findings(turn), findings.model_dump_json().encode())
        if findings.ended in (Ended.ERROR, Ended.LIMIT):
            break


def run_turn(task: DryRunTask, turn: int) -> RankFindings:
    """Run a virtual rank; return what it found, or its error."""
    rank, kills = task.ranks[turn], task_limits.oom_kills()
    with suppress(OSError):
        task.paths.error_file(rank).unlink()
    status, killed = _forked(task, turn)
    with suppress(OSError):
        return RankFindings.model_validate_json(task.findings(turn).read_bytes())
    if killed:
        return RankFindings(rank=rank, ended=Ended.LIMIT)
    account: dict[str, Any] | None = None
    with suppress(OSError, ValueError):
        account = json.loads(task.paths.error_file(rank).read_bytes())
    end = RankEnd(
        rank, HERE, status, time.time(), account=account, memory_kills=task_limits.oom_kills() - kills,
        memory_limit_bytes=task_limits.limit_bytes(),
    )  # fmt: skip
    error = failure_of(end)
    if error is None:
        return RankFindings(rank=rank, ended=Ended.CELL)
    return RankFindings(rank=rank, ended=Ended.ERROR, error=error.model_dump(mode="json"))


def _forked(task: DryRunTask, turn: int) -> tuple[int, bool]:
    """Fork a virtual rank and wait for it; return its exit status, and whether it had to be killed."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        from minicluster.dry_run import rank

        rank.main(parent, task, turn, os.dup(1))
    until, killed = time.monotonic() + task.kill_after_s, False
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            break
        if time.monotonic() > until and not killed:
            killed = True
            os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)
    # What it started is in its session: a loader's processes, for example.
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return status, killed


if __name__ == "__main__":
    main(Path(sys.argv[1]))
