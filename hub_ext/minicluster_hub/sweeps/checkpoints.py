"""Keeps the snapshots of a sweep's best trial and of its latest one, and deletes the others'."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minicluster.wire.sweeps.sweeps import SweepSettings
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.store import Store
from minicluster_hub.store.jobs.sweeps import SweepRecord, TrialRecord
from minicluster_hub.sweeps.ranking import best_of


class Checkpoints:
    """files_of: returns the files of a job's storage."""

    def __init__(self, store: Store, files_of: Callable[[int], BlobFiles]) -> None:
        self._store = store
        self._files_of = files_of
        self._cleared: dict[int, set[int]] = {}

    def clear(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> None:
        """Delete the snapshots of trials that are over, but for the best one and the latest one."""
        cleared = self._cleared.setdefault(sweep.id, set())
        for trial in surplus(sweep.settings, trials):
            if trial.number in cleared:
                continue
            files = self._files_of(trial.job_id)
            for sha256 in self._store.snapshots.remove(trial.job_id):
                files.remove(sha256)
            cleared.add(trial.number)

    def forget(self, sweep_id: int) -> None:
        """Forget what was deleted of a sweep that is over."""
        self._cleared.pop(sweep_id, None)


def surplus(settings: SweepSettings, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that are over, without the best one and the one that ended last."""
    over = [trial for trial in trials if trial.state is not None]
    best, latest = best_of(settings, over), max(over, key=lambda one: one.ended_at or 0.0, default=None)
    kept = {one.number for one in (best, latest) if one is not None}
    return [trial for trial in over if trial.number not in kept]
