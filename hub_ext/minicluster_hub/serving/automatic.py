"""--auto: a training job's model is served if its metric is better than that of the version served now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import isfinite

from minicluster.wire import JobState
from minicluster.wire.serving.models import AutoServe
from minicluster.wire.serving.replicas import TrainedBy
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.runs.recorder import Recorder
from minicluster_hub.store import Store
from minicluster_hub.store.jobs.models import ModelRecord, NewVersion, VersionRecord

_REMEMBERED = 10_000
_MISSED = 100
"""Newest jobs of an owner that are looked at when a service begins to lead: some may have ended meanwhile."""


@dataclass
class AutoServing:
    """Looks at each job that has succeeded, once."""

    store: Store
    recorder: Recorder
    clock: Callable[[], float]
    log: logging.Logger
    _seen: dict[int, None] = field(default_factory=dict[int, None])

    def missed(self, models: Collection[ModelRecord]) -> list[int]:
        """Return jobs that may have ended while no service looked."""
        owners = {one.owner for one in models if _wants(one)}
        return [job.id for owner in sorted(owners) for job in self.store.jobs(owner, limit=_MISSED)]

    async def consider(self, job_ids: Collection[int], models: Collection[ModelRecord]) -> set[int]:
        """Make versions of what these jobs left, where it is better; return the models with a new one."""
        wanting = [one for one in models if _wants(one)]
        fresh = [job_id for job_id in job_ids if job_id not in self._seen] if wanting else []
        if not fresh:
            return set()
        states = self.store.states_by_id(fresh)
        over = [job_id for job_id, state in states.items() if state.terminal]
        changed: set[int] = set()
        for job in self.store.jobs_by_id([one for one in over if states[one] is JobState.SUCCEEDED]):
            changed |= await self._offer(job, [one for one in wanting if one.owner == job.owner])
        # At last: an error of the store must not hide a job.
        self._seen.update(dict.fromkeys(over))
        for job_id in list(self._seen)[: max(0, len(self._seen) - _REMEMBERED)]:
            del self._seen[job_id]
        return changed

    async def _offer(self, job: JobRecord, models: Collection[ModelRecord]) -> set[int]:
        # Somebody may have chosen another version or metric since; after a restart, the job comes here again.
        models = [one for one in models if one.chosen_at <= (job.ended_at or 0.0)]
        if not models or job.result is None or job.spec.serve is not None or job.spec.session:
            return set()
        await self.recorder.catch_up([job.id])
        run = self.store.runs.records([job.id]).get(job.id)
        changed: set[int] = set()
        for model in models:
            last = run.metrics.get(model.auto.metric) if run is not None and model.auto is not None else None
            if last is not None and self._take(job, model, last.value):
                changed.add(model.id)
        return changed

    def _take(self, job: JobRecord, model: ModelRecord, value: float | None) -> bool:
        """Make a version of what a job left, if it is better; return whether it is new."""
        now = self.store.models.version(model.id, model.active)
        if model.auto is None or now is None or now.spec.serve is None or value is None:
            return False
        why = reason(model.auto, job.id, value, now.value)
        if not why or not now.spec.serve.variable:
            return False
        number = self.store.models.add_version(model.id, _version(job, now, value, why), self.clock())
        if number is not None:
            self.log.info("model %s: version %s, since %s", model.key, number, why)
        return number is not None


def _wants(model: ModelRecord) -> bool:
    """Whether jobs of its owner can become versions of a model."""
    return model.auto is not None and model.stopped_at is None


def reason(auto: AutoServe, job_id: int, value: float, before: float | None) -> str:
    """Return why a job's model is served from now on; "" if it is not better."""
    if not isfinite(value):
        return ""
    if before is None:
        return f"job {job_id} has {auto.metric} = {value:.6g}, which is not known of the version before"
    better = value > before if auto.maximize else value < before
    return f"job {job_id} is better: {auto.metric} = {value:.6g}, before {before:.6g}" if better else ""


def _version(job: JobRecord, before: VersionRecord, value: float, why: str) -> NewVersion:
    """Return a version with the code of the one before, and the model that the job left."""
    assert job.result is not None and before.spec.serve is not None  # noqa: S101 - the callers looked
    trained = TrainedBy(
        job_id=job.id,
        payload_sha256=job.spec.payload_sha256,
        result_sha256=job.result.sha256,
        parts=job.spec.parts,
    )
    serve = before.spec.serve.model_copy(update={"trained_by": trained})
    spec = before.spec.model_copy(update={"serve": serve})
    return NewVersion(key=f"job-{job.id}", spec=spec, reason=why, run=before.run, value=value)
