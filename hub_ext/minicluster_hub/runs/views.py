"""From records to the messages of runs. Pure."""

from __future__ import annotations

from minicluster.wire import Job, Run, RunDetails
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.store.jobs.runs import RunRecord

_ERROR_CHARS = 300


def run_message(job: Job, record: RunRecord, sweep: int | None = None) -> Run:
    """Return a run as lists show it. job: its job as lists show it. sweep: whose trial it is."""
    origin = job.origin
    return Run(
        id=job.id,
        owner=job.owner,
        name=job.name,
        state=job.state,
        created_at=job.created_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        world_size=job.world_size,
        nodes=job.nodes,
        gpus=record.gpus,
        error=job.error.message[:_ERROR_CHARS] if job.error else "",
        tags=record.tags,
        favourite=record.favourite,
        note=record.note,
        notebook=origin.notebook if origin else "",
        cell=origin.cell if origin else "",
        kernel=origin.kernel if origin else "",
        rerun_of=record.origin.rerun_of,
        sweep=sweep,
        metrics=dict(record.metrics),
    )


def details_message(job: JobRecord, run: Run, record: RunRecord, image_name: str) -> RunDetails:
    """Return all that is remembered of a run."""
    spec = job.spec
    return RunDetails(
        run=run,
        origin=record.origin.model_copy(update={"tags": record.tags}),
        image=spec.image,
        image_name=image_name,
        seed=spec.seed,
        attempts=job.attempts,
        data=spec.data,
        env=spec.env,
        timeout_s=spec.timeout_s,
        result=job.result,
        payload_sha256=spec.payload_sha256 if job.removed_at is None else None,
        removed_at=job.removed_at,
    )


def metric_names(runs: tuple[Run, ...]) -> tuple[str, ...]:
    """Return the names of all metrics of these runs, the most common first."""
    counts: dict[str, int] = {}
    for run in runs:
        for name in run.metrics:
            counts[name] = counts.get(name, 0) + 1
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))
