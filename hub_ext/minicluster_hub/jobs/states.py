"""The job's state machine: one pure function over one table."""

from __future__ import annotations

from enum import StrEnum

from minicluster.wire import JobState


class JobEvent(StrEnum):
    """What can happen to a job."""

    ADMITTED = "admitted"
    """Slots are leased for a whole gang, or a warm gang is bound."""
    RANKS_STARTED = "ranks-started"
    STOP_ASKED = "stop-asked"
    FAILURE_SEEN = "failure-seen"
    """A rank failed, a time limit passed, or the gang could not start."""
    TASK_LOST = "task-lost"
    RANKS_SUCCEEDED = "ranks-succeeded"
    PREEMPTED = "preempted"
    """The scheduler moves it to other slots or suspends it; it goes on from its newest snapshot."""
    ATTEMPT_CLEANED_UP = "cleared"
    """Nothing of the attempt is left on any node."""
    GIVEN_UP = "given-up"
    """The service itself fails with this job again and again: the job fails, and its gang is ended."""


class TransitionImpossible(Exception):
    """An event came in a state that does not allow it: a defect in the caller."""

    def __init__(self, job_id: int, state: JobState, event: JobEvent, history: list[str]) -> None:
        events = ", ".join(history) or "none"
        super().__init__(
            f"job {job_id} is {state} and cannot take the event {event}; events so far: {events}"
        )


_S, _E = JobState, JobEvent

TRANSITIONS: dict[tuple[JobState, JobEvent], JobState] = {
    (_S.QUEUED, _E.ADMITTED): _S.STARTING,
    (_S.QUEUED, _E.STOP_ASKED): _S.STOPPED,
    (_S.QUEUED, _E.FAILURE_SEEN): _S.FAILED,
    (_S.STARTING, _E.RANKS_STARTED): _S.RUNNING,
    (_S.STARTING, _E.STOP_ASKED): _S.STOPPING,
    (_S.STARTING, _E.FAILURE_SEEN): _S.FAILING,
    (_S.STARTING, _E.TASK_LOST): _S.REQUEUING,
    (_S.STARTING, _E.RANKS_SUCCEEDED): _S.SUCCEEDED,
    (_S.RUNNING, _E.STOP_ASKED): _S.STOPPING,
    (_S.RUNNING, _E.FAILURE_SEEN): _S.FAILING,
    (_S.RUNNING, _E.TASK_LOST): _S.REQUEUING,
    (_S.RUNNING, _E.PREEMPTED): _S.YIELDING,
    (_S.RUNNING, _E.RANKS_SUCCEEDED): _S.SUCCEEDED,
    (_S.STOPPING, _E.ATTEMPT_CLEANED_UP): _S.STOPPED,
    (_S.FAILING, _E.ATTEMPT_CLEANED_UP): _S.FAILED,
    (_S.FAILING, _E.STOP_ASKED): _S.FAILING,
    # The failure was a lost connection, and its node turns out to be lost.
    (_S.FAILING, _E.TASK_LOST): _S.REQUEUING,
    (_S.STOPPING, _E.STOP_ASKED): _S.STOPPING,
    (_S.REQUEUING, _E.ATTEMPT_CLEANED_UP): _S.QUEUED,
    (_S.REQUEUING, _E.STOP_ASKED): _S.STOPPING,
    (_S.YIELDING, _E.ATTEMPT_CLEANED_UP): _S.QUEUED,
    (_S.YIELDING, _E.STOP_ASKED): _S.STOPPING,
    **{(state, _E.GIVEN_UP): _S.FAILED for state in JobState if not state.terminal},
}


def next_state(state: JobState, event: JobEvent) -> JobState | None:
    """Return the state after the event, or None if the table has no such pair."""
    return TRANSITIONS.get((state, event))
