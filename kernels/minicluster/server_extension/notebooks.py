"""Which jobs a notebook's cells submitted, also where it was renamed or its page was never saved."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicluster.wire import Job, NotebookCell


@dataclass(frozen=True)
class Place:
    """What this server knows of its notebooks. paths: where the notebook of each kernel is now."""

    root: Path
    paths: Mapping[str, str]

    def path_of(self, origin: NotebookCell) -> str:
        """Return where the notebook of a cell is, as this server calls it."""
        return self.paths.get(origin.kernel) or self._told(origin.notebook)

    def _told(self, notebook: str) -> str:
        path = Path(notebook)
        if path.is_absolute() and path.is_relative_to(self.root):
            return path.relative_to(self.root).as_posix()
        return posixpath.normpath(notebook.lstrip("/")) if notebook else ""

    def has(self, path: str) -> bool:
        return bool(path) and (self.root / path).is_file()


def jobs_to_show(jobs: tuple[Job, ...], path: str, saved_at: float, place: Place) -> list[Job]:
    """Return the jobs whose panels a notebook may lack: open ones, and those that ended after it was saved.

    A notebook that is at no known place any more may be this one under another name; its cells' ids decide.
    A copy has the same ids, but the first one is still there.
    """
    found = []
    for job in jobs:
        if job.origin is None or not job.origin.cell or (job.ended_at or saved_at) < saved_at:
            continue
        came_from = place.path_of(job.origin)
        if came_from == path or not place.has(came_from):
            found.append(job)
    return found


def kernels_paths(sessions: list[dict[str, Any]]) -> dict[str, str]:
    """Return the path of each kernel's notebook, from a session manager's list."""
    told = ((session.get("kernel") or {}, session.get("path") or "") for session in sessions)
    return {kernel["id"]: path for kernel, path in told if "id" in kernel}
