"""The job's state machine: every pair of the table, and properties of the whole table."""

import pytest

from minicluster.wire import JobState
from minicluster_hub.jobs.states import TRANSITIONS, JobEvent, TransitionImpossible, next_state


def test_a_job_that_goes_well():
    state = JobState.QUEUED
    for event in (JobEvent.ADMITTED, JobEvent.RANKS_STARTED, JobEvent.RANKS_SUCCEEDED):
        state = next_state(state, event)
    assert state is JobState.SUCCEEDED


@pytest.mark.parametrize("state", [state for state in JobState if state.terminal])
def test_nothing_happens_after_the_end(state):
    assert all(next_state(state, event) is None for event in JobEvent)


@pytest.mark.parametrize("state", [state for state in JobState if not state.terminal])
def test_stop_is_taken_in_every_open_state(state):
    assert next_state(state, JobEvent.STOP_ASKED) is not None


@pytest.mark.parametrize("state", [state for state in JobState if not state.terminal])
def test_every_open_state_leads_to_an_end(state):
    reached, todo = set(), [state]
    while todo:
        here = todo.pop()
        reached.add(here)
        todo += [to for (origin, _), to in TRANSITIONS.items() if origin is here and to not in reached]
    assert {JobState.STOPPED, JobState.FAILED} & reached


def test_slots_are_held_only_between_admitted_and_cleared():
    """A job leaves states with a gang when the gang is cleared, when all ranks succeed, or with the gang."""
    holding = {s for s in JobState if not s.terminal and s is not JobState.QUEUED}
    leaving = {
        event for (origin, event), to in TRANSITIONS.items() if origin in holding and to not in holding
    }
    assert leaving == {JobEvent.ATTEMPT_CLEANED_UP, JobEvent.RANKS_SUCCEEDED, JobEvent.GIVEN_UP}


def test_the_error_of_an_impossible_event_tells_the_history():
    error = TransitionImpossible(7, JobState.STOPPED, JobEvent.ADMITTED, ["submitted", "stop-asked"])
    assert "job 7 is stopped" in str(error)
    assert "submitted, stop-asked" in str(error)
