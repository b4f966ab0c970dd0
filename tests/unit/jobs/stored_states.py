"""Hand-made stored states and observations, for tests of the pure functions that decide actions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from minicluster.wire import CountRange, ErrorKind, JobError, JobSpec, JobState, RankState
from minicluster_hub.jobs.actions import Action, ApplyEvent
from minicluster_hub.jobs.gang_state import ClusterState, GangState, LifecycleLimits, Observation
from minicluster_hub.jobs.lifecycle import decide, next_deadline
from minicluster_hub.jobs.records import (
    GangRecord,
    GangTarget,
    JobRecord,
    LighthouseView,
    RankRecord,
    StoredState,
    TaskRecord,
    TaskState,
    TaskView,
)
from minicluster_hub.jobs.states import JobEvent

NOW = 5000.0
LIMITS = LifecycleLimits()
SPEC = JobSpec(payload_sha256="a" * 64, nodes=CountRange(min=2, max=2))
TOLERANT = SPEC.model_copy(update={"fault_tolerant": True})
FAILURE = JobError(kind=ErrorKind.EXCEPTION, message="ValueError: no", rank=1, at=4999.0)


def job(state: JobState = JobState.RUNNING, **changes: Any) -> JobRecord:
    record = JobRecord(
        id=7,
        owner="ada",
        spec=SPEC,
        state=state,
        reason="",
        created_at=4900.0,
        started_at=4950.0,
        ended_at=None,
        state_since=4950.0,
        attempts=1,
        attempt_id=70,
        gang_id=3,
        world_size=2,
        error=None,
        result=None,
    )
    return replace(record, **changes)


def task(index: int, state: TaskState = TaskState.READY, **changes: Any) -> TaskRecord:
    record = TaskRecord(
        id=30 + index,
        gang_id=3,
        index=index,
        node=f"node-{index}",
        slots=(0,),
        state=state,
        token_hash="",
        address="127.0.0.1",
        store_port=4000 + index,
        cleaned_up_attempt_id=0,
        failure=None,
        state_since=4940.0,
    )
    return replace(record, **changes)


READY = (task(0), task(1))
CLEANED_UP = (task(0, cleaned_up_attempt_id=70), task(1, cleaned_up_attempt_id=70))
EXITED = (RankState.EXITED, RankState.EXITED)


def stored(
    record: JobRecord | None,
    tasks: Iterable[TaskRecord],
    states: Sequence[RankState] = (RankState.STARTED, RankState.STARTED),
    errors: Sequence[JobError | None] = (None, None),
    target: GangTarget = GangTarget.KEEP,
    idle_since: float | None = None,
) -> StoredState:
    """Return the stored state of one gang, bound to the job unless the job has ended."""
    bound = record if record is not None and not record.state.terminal else None
    gang = GangRecord(3, "ada", target, bound.id if bound else None, 1, 4900.0, idle_since)
    ranks = tuple(
        RankRecord(70, rank, 30 + rank, state, 0 if state is RankState.EXITED else None, error)
        for rank, (state, error) in enumerate(zip(states, errors, strict=True))
    )
    return StoredState((bound,) if bound else (), (gang,), tuple(tasks), ranks if bound else (), ())


def observation(
    *dead: int,
    silent: Collection[int] = (),
    missing: Collection[int] = (),
    clean: Collection[int] = (),
) -> Observation:
    """Return an observation in which both tasks are alive and report, except those with missing ids."""
    views = {
        number: TaskView(number, alive=number not in dead, clean=number in clean, detail="last words")
        for number in (30, 31)
        if number not in missing
    }
    return Observation(views, {number: 99.0 if number in silent else 0.1 for number in (30, 31)}, NOW)


def lit(seen: Observation, alive: bool = True) -> Observation:
    """Return the observation with a lighthouse for the gang."""
    return replace(seen, lighthouses={3: LighthouseView(3, "127.0.0.1:5000", alive)})


def gang_state_of(here: StoredState, seen: Observation | None = None) -> GangState:
    """Return the state of the gang."""
    (gang_state,) = ClusterState.of(here, seen or observation(), LIMITS).gang_states
    return gang_state


def acts(
    here: StoredState, seen: Observation | None = None, limits: LifecycleLimits = LIMITS
) -> tuple[Action, ...]:
    """Return the decided actions."""
    return decide(ClusterState.of(here, seen or observation(), limits), limits)


def deadline_s(
    here: StoredState, seen: Observation | None = None, limits: LifecycleLimits = LIMITS
) -> float | None:
    """Return the seconds until the next check."""
    return next_deadline(ClusterState.of(here, seen or observation(), limits), limits)


def events(actions: Iterable[Action]) -> list[JobEvent]:
    """Return the events among the actions."""
    return [action.event for action in actions if isinstance(action, ApplyEvent)]
