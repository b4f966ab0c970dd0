"""When to look again without being woken: pure."""

from __future__ import annotations

from collections.abc import Iterator

from minicluster.wire import JobState
from minicluster_hub.jobs.records import JobRecord, TaskState, World
from minicluster_hub.jobs.gang_state import ENDING, Isolate, Limits, Scene, Sight, scenes, together


def next_deadline(world: World, sight: Sight, limits: Limits, isolate: Isolate = together) -> float | None:
    """Return in how many seconds `lifecycle.decide` may say something new without any event, or None."""
    waits: list[float] = []
    for scene in scenes(world, sight, limits, isolate):
        with isolate("timing", scene.gang):
            waits += _gang_waits(scene, sight, limits)
            if scene.job is not None:
                waits += _job_waits(scene, scene.job, sight, limits)
    return max(0.05, min(waits)) if waits else None


def _gang_waits(scene: Scene, sight: Sight, limits: Limits) -> Iterator[float]:
    if scene.gang.job_id is None:
        ends_s = [until - sight.now for until in (scene.idle_until(limits), scene.warm_until(limits))]
        yield min((end_s for end_s in ends_s if end_s > 0), default=0.0)
    for task in scene.tasks:
        if task.state in (TaskState.STARTED, TaskState.READY):
            yield scene.patience_s[task.id] - sight.silence_s.get(task.id, 0.0) + 0.05


def _job_waits(scene: Scene, job: JobRecord, sight: Sight, limits: Limits) -> Iterator[float]:
    now, since = sight.now, scene.starting_since(sight.views)
    if job.state in ENDING:
        patience_s = (limits.end_patience_s(job.state, brings=brings) for brings in (False, True))
        waits_s = [job.state_since + end_s - now + 0.05 for end_s in patience_s]
        yield min((wait_s for wait_s in waits_s if wait_s > 0), default=0.0)
    elif job.state is JobState.STARTING and since is not None:
        patience_s = limits.meet_patience_s if scene.apart else limits.start_timeout_s
        yield since + patience_s - now + 0.05
    elif job.state is JobState.STARTING:
        yield job.state_since + limits.pull_timeout_s - now + 0.05
    elif job.state is JobState.RUNNING and job.spec.timeout_s:
        yield job.state_since + job.spec.timeout_s - now + 0.05
