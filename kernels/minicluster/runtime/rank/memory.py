"""Where a node keeps the snapshots of a task's job: in its memory, on its disk when that has no room."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

MEMORY = "MINICLUSTER_MEMORY"
"""The task's folder in memory, where the engine chose one: it removes what a killed agent leaves."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - memory, not a folder for files of anybody


def memory_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the task's folder in memory; None where there is no such file system."""
    told = environ.get(MEMORY) or str(_SHARED_MEMORY / f"minicluster-{environ.get('MINICLUSTER_TASK', '0')}")
    return Path(told) if _SHARED_MEMORY.is_dir() else None


def job_folders(job_id: int, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return where a job's snapshots lie, the folder in memory first. Agent and ranks agree on it."""
    roots = (memory_folder(environ), Path(environ["MINICLUSTER_SCRATCH"]) / "snapshots")
    return tuple(root / f"job-{job_id}" for root in roots if root)


def forget_other_jobs(job_id: int, environ: Mapping[str, str] = os.environ) -> None:
    for folder in job_folders(job_id, environ):
        if folder.parent.is_dir():
            for other in folder.parent.iterdir():
                if other.name != folder.name:
                    shutil.rmtree(other, ignore_errors=True)


def forget_all(environ: Mapping[str, str] = os.environ) -> None:
    for folder in job_folders(0, environ):
        shutil.rmtree(folder.parent, ignore_errors=True)
