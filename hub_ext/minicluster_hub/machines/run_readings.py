"""The readings of runs: of each rank, on the run's axis of time, kept with the run's other files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock

from minicluster.wire import RankHistory, RankReading
from minicluster_hub.machines.machines import field_histories
from minicluster_hub.machines.rank_file import FIELDS, RankFile

_WRITE_AGAIN_S = 60.0
"""Pause after the disk refused a reading."""


class RunReadings:
    """path: of a run's file, by the job's id."""

    def __init__(self, path: Callable[[int], Path], clock: Callable[[], float], log: logging.Logger) -> None:
        self._path = path
        self._clock = clock
        self._log = log
        self._lock = Lock()
        self._again_at = 0.0

    def receive(self, job_id: int, own: range, readings: Sequence[RankReading]) -> None:
        """Take readings from an agent. own: the ranks of its task; those of others are left out."""
        now = self._clock()
        mine = [reading for reading in readings if reading.rank in own]
        if not mine or now < self._again_at:
            return
        by_age: dict[float, dict[int, dict[str, float]]] = {}
        for reading in mine:
            by_age.setdefault(reading.ago_s, {})[reading.rank] = dict(_values(reading))
        try:
            path = self._path(job_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            for ago_s, of_ranks in sorted(by_age.items(), reverse=True):
                RankFile(path, self._lock).add(now - ago_s, of_ranks)
        except OSError as error:
            self._again_at = now + _WRITE_AGAIN_S
            self._log.warning("readings of job %s are not stored: %s", job_id, error)

    def read(self, job_id: int, points: int) -> tuple[RankHistory, ...]:
        """Return the histories of a run's ranks. It reads the disk. Raises OSError."""
        found = RankFile(self._path(job_id), self._lock).read(points)
        return tuple(
            RankHistory(rank=rank, step_s=one.step_s, at=one.at, fields=field_histories(one))
            for rank, one in found.items()
        )


def _values(reading: RankReading) -> Iterator[tuple[str, float]]:
    for field in FIELDS:
        value = getattr(reading, field)
        if value is not None:
            yield field, float(value)
