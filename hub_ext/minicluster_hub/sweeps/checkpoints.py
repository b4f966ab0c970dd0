"""Keeps the snapshots of a sweep's best trial and of its latest one, and deletes the others'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minicluster.wire.sweeps.sweeps import SweepSettings
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.store import Store
from minicluster_hub.store.jobs.sweeps import SweepRecord, TrialRecord
from minicluster_hub.sweeps.ranking import best_of


@dataclass(frozen=True)
class Checkpoints:
    """files_of: returns the files of a job's storage."""

    store: Store
    files_of: Callable[[int], BlobFiles]

    def clear(self, sweep: SweepRecord) -> None:
        """Delete the snapshots of trials that are over, but for the best one and the latest one."""
        for trial in surplus(sweep.settings, self.store.sweeps.trials(sweep.id)):
            gone = self.store.snapshots.remove(trial.job_id)
            files = self.files_of(trial.job_id)
            for sha256 in gone:
                files.remove(sha256)


def surplus(settings: SweepSettings, trials: list[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that are over, without the best one and the one that ended last."""
    over = [trial for trial in trials if trial.state is not None]
    best, latest = best_of(settings, over), max(over, key=lambda one: one.ended_at or 0.0, default=None)
    kept = {one.number for one in (best, latest) if one is not None}
    return [trial for trial in over if trial.number not in kept]
