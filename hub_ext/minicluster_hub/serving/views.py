"""Models, their versions and replicas as their owners see them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from minicluster.wire import Job, JobState
from minicluster.wire.serving.models import (
    ModelDetails,
    ModelFigures,
    ModelState,
    ModelVersion,
    Replica,
    ReplicaPhase,
    ServedModel,
)
from minicluster_hub.serving.planning import ModelView, ReplicaView
from minicluster_hub.serving.routing import model_key
from minicluster_hub.store.jobs.models import ModelRecord, VersionRecord

ANSWERS = "answers/"
"""Where models answer, below the service's path."""


def answers_path(model: ModelRecord) -> str:
    """Return the path of a model's answers, relative to the service's."""
    return f"{ANSWERS}{model_key(model.owner, model.name)}/"


def state_of(model: ModelRecord, view: ModelView) -> ModelState:
    if model.ended_at is not None:
        return ModelState.STOPPED
    if model.stopped_at is not None:
        return ModelState.STOPPING
    if view.ready(model.serving):
        return ModelState.SERVING
    return ModelState.FAILING if model.active in view.failed else ModelState.STARTING


def model_message(
    model: ModelRecord, view: ModelView, note: str, figures: ModelFigures | None = None
) -> ServedModel:
    return ServedModel(
        id=model.id,
        owner=model.owner,
        name=model.name,
        state=state_of(model, view),
        active=model.active,
        serving=model.serving,
        replicas=model.replicas,
        ready=len(view.ready(model.serving)) if model.ended_at is None else 0,
        shared=model.shared,
        is_open=model.is_open,
        auto=model.auto,
        created_at=model.created_at,
        path=answers_path(model),
        note=note,
        figures=figures or ModelFigures(),
    )


def version_message(version: VersionRecord) -> ModelVersion:
    assert version.spec.serve is not None  # noqa: S101 - each version has it
    serve = version.spec.serve
    return ModelVersion(
        number=version.number,
        created_at=version.created_at,
        reason=version.reason,
        value=version.value,
        trained_by=serve.trained_by.job_id if serve.trained_by is not None else None,
        error=version.error,
        signature=serve.signature,
        options=serve.options,
    )


def replica_message(view: ReplicaView, job: Job) -> Replica:
    """Return a replica. job: its job, as lists show it."""
    return Replica(
        job_id=view.job_id,
        version=view.version,
        phase=_phase(view),
        node=", ".join(job.nodes),
        reason=job.reason,
        since=job.started_at or job.created_at,
    )


def _phase(view: ReplicaView) -> ReplicaPhase:
    if view.retired:
        return ReplicaPhase.DRAINING
    if view.ready:
        return ReplicaPhase.READY
    return ReplicaPhase.WAITING if view.state is JobState.QUEUED else ReplicaPhase.STARTING


def model_details(
    model: ServedModel,
    versions: Sequence[VersionRecord],
    view: ModelView,
    jobs: Mapping[int, Job],
    front: str,
) -> ModelDetails:
    details = ModelDetails(
        model=model,
        versions=tuple(map(version_message, versions)),
        replicas=tuple(replica_message(one, jobs[one.job_id]) for one in view.present if one.job_id in jobs),
        front=front,
    )
    # Without the figures: they differ with each request.
    stable = details.model_copy(update={"model": model.model_copy(update={"figures": ModelFigures()})})
    version = hashlib.sha256(stable.model_dump_json().encode()).hexdigest()[:16]
    return details.model_copy(update={"version": version})
