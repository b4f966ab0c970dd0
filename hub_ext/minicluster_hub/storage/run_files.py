"""The files of runs beside their rows: the series of each, by `runs/series.py`, and what its ranks used."""

from __future__ import annotations

from pathlib import Path

SMALL_BYTES = 256 * 1024
"""A file of this size stays when its job's data is removed after the days that an admin set."""
_SUFFIX = ".sqlite"
_READINGS = ".readings"


class RunFiles:
    """All files under one folder: JOB.sqlite, and JOB.readings by `machines/rank_file.py`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, job_id: int) -> Path:
        return self._root / f"{int(job_id)}{_SUFFIX}"

    def readings_path(self, job_id: int) -> Path:
        return self._root / f"{int(job_id)}{_READINGS}"

    def jobs(self) -> list[int]:
        """Return the ids of the jobs that have a file."""
        paths = (path for suffix in (_SUFFIX, _READINGS) for path in self._root.glob(f"*{suffix}"))
        return sorted({int(path.stem) for path in paths if path.stem.isdecimal()})

    def size_bytes(self, job_id: int) -> int:
        path = self.path(job_id)
        return path.stat().st_size if path.exists() else 0

    def remove_large(self, job_id: int) -> None:
        if self.size_bytes(job_id) > SMALL_BYTES:
            self._remove_series(job_id)
        readings = self.readings_path(job_id)
        if readings.exists() and readings.stat().st_size > SMALL_BYTES:
            readings.unlink(missing_ok=True)

    def remove(self, job_id: int) -> None:
        self._remove_series(job_id)
        self.readings_path(job_id).unlink(missing_ok=True)

    def _remove_series(self, job_id: int) -> None:
        # With the journal, if the service was killed while it wrote.
        for path in self._root.glob(f"{int(job_id)}{_SUFFIX}*"):
            path.unlink(missing_ok=True)
