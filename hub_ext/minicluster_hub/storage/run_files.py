"""The files of runs beside their rows: one with the series of each run, as `runs/series.py` writes it."""

from __future__ import annotations

from pathlib import Path

SMALL_BYTES = 256 * 1024
"""A file of this size stays when its job's data is removed after the days that an admin set."""
_SUFFIX = ".sqlite"


class RunFiles:
    """All files under one folder: JOB.sqlite."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, job_id: int) -> Path:
        return self._root / f"{int(job_id)}{_SUFFIX}"

    def jobs(self) -> list[int]:
        """Return the ids of the jobs that have a file."""
        return sorted(int(path.stem) for path in self._root.glob(f"*{_SUFFIX}") if path.stem.isdecimal())

    def size_bytes(self, job_id: int) -> int:
        path = self.path(job_id)
        return path.stat().st_size if path.exists() else 0

    def remove_large(self, job_id: int) -> None:
        if self.size_bytes(job_id) > SMALL_BYTES:
            self.remove(job_id)

    def remove(self, job_id: int) -> None:
        # With the journal, if the service was killed while it wrote.
        for path in self._root.glob(f"{int(job_id)}{_SUFFIX}*"):
            path.unlink(missing_ok=True)
