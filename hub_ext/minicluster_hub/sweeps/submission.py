"""Submits a trial's job: with the sweep's request, on as few nodes as leave room for other trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from minicluster.wire import CountRange, JobSpec, JobSubmit, StorageKind
from minicluster.wire.sweeps.sweeps import PruneMethod
from minicluster.wire.sweeps.trials import TrialRef
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.scheduling.admission import AdmissionLimits
from minicluster_hub.storage.quotas import OverQuota, Storage
from minicluster_hub.store import Store
from minicluster_hub.store.jobs.job_rows import row_bytes
from minicluster_hub.store.jobs.sweeps import SweepRecord
from minicluster_hub.support.disk_errors import NotKept
from minicluster_hub.usage.accounting import UsageAccounting

_NAME_CHARS = 100


class TrialHeldBack(Exception):
    """No further trial can be submitted now; the message says why."""


@dataclass(frozen=True)
class Submission:
    """Submits trials for their sweep's owner, within the owner's quotas."""

    store: Store
    status_cache: StatusCache
    storage: Storage
    accounting: UsageAccounting
    limits: AdmissionLimits
    clock: Callable[[], float]

    def submit(self, sweep: SweepRecord, number: int, left: float) -> JobRecord:
        """Submit a trial's job. left: trials to come, with this one. Raises TrialHeldBack."""
        self._check_quota(sweep.owner)
        spec = trial_spec(sweep, number, replicas(sweep.spec, self._pieces(sweep.spec, free=False), left))
        request = JobSubmit(idempotency_key=f"sweep-{sweep.id}-trial-{number}", spec=spec, run=sweep.run)
        try:
            with self.storage.reserve(sweep.owner, StorageKind.CELLS, row_bytes(request), small=True):
                # Renewed, so that the cell is not removed before the job's row names it.
                for blob in self.store.blobs.renew_all(sweep.owner, spec.blobs, self.clock()):
                    raise TrialHeldBack(f"the cell's payload {blob} is missing")
                return self.store.sweeps.add_trial(sweep, number, request, self.clock())
        except (OverQuota, NotKept) as refused:
            raise TrialHeldBack(str(refused)) from refused

    def room(self, spec: JobSpec) -> int:
        """Return how many trials could start now on free slots."""
        return self._pieces(spec, free=True) // max(1, spec.replicas.min if spec.replicas else 1)

    def _pieces(self, spec: JobSpec, *, free: bool) -> int:
        """Return how many pieces of `slots_per_node` slots the cluster has, all of them or the free ones."""
        count = 0
        for node in self.status_cache.nodes().nodes:
            if node.up and not node.closed:
                usable = (
                    slot for slot in node.slots if not free or (slot.job_id is None and slot.server is None)
                )
                count += _pieces_of([slot.share for slot in usable], spec)
        return count

    def _check_quota(self, owner: str) -> None:
        quota = self.accounting.quotas.at_submission(owner)
        most = min(self.limits.max_open_jobs, inf if quota.open_jobs is None else quota.open_jobs)
        count = self.store.count_open_jobs(owner)
        if count >= most:
            raise TrialHeldBack(f"{owner} has {count} jobs waiting or running; the limit is {most:g}")


def trial_spec(sweep: SweepRecord, number: int, count: CountRange | None) -> JobSpec:
    """Return the request of a trial's job. count: of its nodes or slots."""
    suffix = f" #{number}"
    settings = sweep.settings
    trial = TrialRef(
        sweep=sweep.id,
        number=number,
        metric=settings.metric,
        prunes=settings.prune is not PruneMethod.NONE,
    )
    changed = {"slots" if sweep.spec.slots else "nodes": count, "trial": trial}
    name = sweep.name[: _NAME_CHARS - len(suffix)] + suffix
    return sweep.spec.model_copy(update={**changed, "name": name})


def _pieces_of(shares: Sequence[float], spec: JobSpec) -> int:
    """Return how many pieces these slots and halves of slots are; a whole slot is two halves."""
    if spec.gpu_share:
        return int(sum(shares) / spec.gpu_share)
    return sum(share == 1 for share in shares) // spec.slots_per_node


def replicas(spec: JobSpec, pieces: int, left: float) -> CountRange | None:
    """Return a trial's range of nodes or slots: the least as long as other trials can use the rest."""
    asked = spec.replicas
    if asked is None:
        return None
    share = int(pieces // min(left, max(1, pieces // asked.min)))
    return CountRange(min=asked.min, max=max(asked.min, min(asked.max, share)))
