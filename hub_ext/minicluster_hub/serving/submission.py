"""Submits a replica's job: with its version's request, on one node, within the owner's quotas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from minicluster.wire import CountRange, JobSpec, JobSubmit, StorageKind
from minicluster.wire.serving.replicas import ReplicaOf
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.scheduling.admission import AdmissionLimits
from minicluster_hub.scheduling.base import NORMAL_PRIORITY
from minicluster_hub.storage.quotas import OverQuota, Storage
from minicluster_hub.store import Store
from minicluster_hub.store.jobs.job_rows import row_bytes
from minicluster_hub.store.jobs.models import ModelRecord, VersionRecord
from minicluster_hub.support.disk_errors import NotKept
from minicluster_hub.usage.accounting import UsageAccounting

_NAME_CHARS = 100


class ReplicaHeldBack(Exception):
    """No further replica can be submitted now; the message says why."""


@dataclass(frozen=True)
class ReplicaSubmission:
    """Submits replicas for their model's owner."""

    store: Store
    storage: Storage
    accounting: UsageAccounting
    limits: AdmissionLimits
    clock: Callable[[], float]

    def submit(self, model: ModelRecord, version: VersionRecord) -> JobRecord:
        """Submit a replica's job. Raises ReplicaHeldBack."""
        self._check_quota(model.owner)
        spec = version.spec.model_copy(update={"name": replica_name(model.name, version.number)})
        key = f"model-{model.id}-replica-{self.store.models.count_replicas(model.id)}"
        request = JobSubmit(idempotency_key=key, spec=spec, run=version.run)
        try:
            with self.storage.reserve(model.owner, StorageKind.CELLS, row_bytes(request), small=True):
                # Renewed, so that none is removed before the job's row names it.
                for blob in self.store.blobs.renew_all(model.owner, spec.blobs, self.clock()):
                    raise ReplicaHeldBack(
                        f"version {version.number} cannot be started: its part {blob[:12]} was removed "
                        "with old jobs"
                    )
                job = self.store.models.add_replica(model, version.number, request, self.clock())
        except (OverQuota, NotKept) as refused:
            raise ReplicaHeldBack(str(refused)) from refused
        if job is None:
            raise ReplicaHeldBack(f"{model.owner} has another job with the key {key}")
        return job

    def _check_quota(self, owner: str) -> None:
        quota = self.accounting.quotas.at_submission(owner)
        most = min(self.limits.max_open_jobs, inf if quota.open_jobs is None else quota.open_jobs)
        count = self.store.count_open_jobs(owner)
        if count >= most:
            raise ReplicaHeldBack(f"{owner} has {count} jobs waiting or running; the limit is {most:g}")


def replica_name(model: str, version: int) -> str:
    """Return the name of a replica's job."""
    suffix = f" v{version}"
    return model[: _NAME_CHARS - len(suffix)] + suffix


def as_replica(spec: JobSpec, serve: ReplicaOf) -> JobSpec:
    """Return an owner's request with what all replicas have: one rank on one node, without a time limit.

    Raises ValidationError if it cannot be a replica's: a session, for example.
    """
    # Not by `model_copy`, which checks nothing: a request that no row can be read from would stay for ever.
    return JobSpec.model_validate(
        {
            **dict(spec),
            "nodes": CountRange(min=1, max=1),
            "ranks_per_node": 1,
            "timeout_s": None,
            "quiet_after_s": 0.0,
            "priority": NORMAL_PRIORITY,
            "serve": serve,
        }
    )
