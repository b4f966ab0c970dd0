"""The next actions for hand-made stored states: events in, actions out."""

from dataclasses import replace

import pytest

from minicluster.runtime.agent.attempt import ESCALATION
from minicluster.runtime.agent.files.artifacts import TIME_LEFT_S
from minicluster.wire import ErrorKind, JobError, JobState, RankState, StopMode
from minicluster_hub.jobs.actions import DropTasks, EndGang, EndTask, MarkEnded, MarkStarted, StartTask
from minicluster_hub.jobs.gang_state import LifecycleLimits, Observation
from minicluster_hub.jobs.records import GangTarget, RankRecord, StoredState, TaskState, TaskView
from minicluster_hub.jobs.root_cause import root_cause
from minicluster_hub.jobs.states import JobEvent

from .stored_states import (
    CLEANED_UP,
    EXITED,
    FAILURE,
    LIMITS,
    NOW,
    READY,
    SPEC,
    acts,
    deadline_s,
    events,
    job,
    observation,
    stored,
    task,
)


def test_a_running_job_needs_nothing():
    assert acts(stored(job(), READY)) == ()


def test_new_tasks_are_started_once():
    new = (task(0, TaskState.NEW), task(1, TaskState.NEW))
    starting = stored(job(JobState.STARTING), new, (RankState.PENDING,) * 2)
    assert acts(starting, observation(missing=(30, 31))) == (StartTask(new[0]), StartTask(new[1]))
    assert acts(starting, observation(missing=(31,))) == (MarkStarted(new[0]), StartTask(new[1]))


def test_running_when_all_ranks_have_started():
    half = stored(job(JobState.STARTING), READY, (RankState.STARTED, RankState.PENDING))
    assert events(acts(half)) == []
    assert events(acts(stored(job(JobState.STARTING), READY))) == [JobEvent.RANKS_STARTED]


def test_success_when_every_rank_has_exited_though_a_process_still_gives_back_its_memory():
    assert events(acts(stored(job(), READY, (RankState.EXITED, RankState.STARTED)))) == []
    assert events(acts(stored(job(), READY, EXITED))) == [JobEvent.RANKS_SUCCEEDED]


def test_the_first_failed_rank_ends_the_attempt():
    (seen,) = acts(stored(job(), READY, (RankState.STARTED, RankState.EXITED), (None, FAILURE)))
    assert seen.event is JobEvent.FAILURE_SEEN
    assert "rank 1" in seen.reason


def test_the_error_is_that_of_the_culprit_not_of_who_noticed_first():
    noticed = JobError(
        kind=ErrorKind.EXCEPTION, message="RuntimeError: Connection closed by peer", rank=0, at=4998.0
    )
    here = stored(job(JobState.FAILING, state_since=NOW), CLEANED_UP, EXITED, (noticed, FAILURE))
    (seen,) = acts(here)
    assert (seen.event, seen.error) == (JobEvent.ATTEMPT_CLEANED_UP, FAILURE)


def test_of_two_failures_the_earlier_is_the_cause():
    later = FAILURE.model_copy(update={"rank": 0, "at": 5000.0})
    ranks = [RankRecord(70, e.rank, 30, RankState.EXITED, 1, e) for e in (later, FAILURE)]
    assert root_cause(ranks) == FAILURE
    assert root_cause([]) is None


def test_an_agent_that_dies_at_start_is_a_failure_with_its_last_words():
    here = stored(job(JobState.STARTING), (task(0, TaskState.STARTED), task(1)), (RankState.PENDING,) * 2)
    (seen,) = acts(here, observation(30))
    assert (seen.event, seen.error.kind) == (JobEvent.FAILURE_SEEN, ErrorKind.START)
    assert seen.error.traceback == "last words"


def test_the_time_to_start_begins_when_the_last_node_has_the_image():
    new = (task(0, TaskState.NEW, state_since=4000.0), task(1, state_since=4000.0))
    here = stored(job(JobState.STARTING, state_since=4000.0), new, (RankState.PENDING,) * 2)
    pulling = Observation(
        {30: TaskView(30, alive=True, starting=True), 31: TaskView(31, alive=True)}, {}, NOW
    )
    assert acts(here, pulling) == ()
    assert events(acts(here)) == [JobEvent.FAILURE_SEEN]
    come = (task(0, TaskState.STARTED, state_since=NOW - 1), task(1, state_since=4000.0))
    assert acts(stored(job(JobState.STARTING, state_since=4000.0), come, (RankState.PENDING,) * 2)) == ()


def test_an_agents_own_failure_is_told_with_its_node():
    failure = JobError(kind=ErrorKind.START, message="torch does not import")
    here = stored(job(JobState.STARTING), (task(0, failure=failure), task(1)), (RankState.PENDING,) * 2)
    (seen,) = acts(here)
    assert (seen.error.message, seen.error.node) == ("torch does not import", "node-0")


@pytest.mark.parametrize("state", [JobState.STOPPING, JobState.FAILING, JobState.REQUEUING])
def test_an_ending_attempt_waits_for_its_ranks_and_then_is_cleared(state):
    recent = job(state, state_since=NOW - 3)
    assert acts(stored(recent, READY)) == ()
    assert events(acts(stored(recent, CLEANED_UP, EXITED))) == [JobEvent.ATTEMPT_CLEANED_UP]


def test_agents_that_do_not_end_their_ranks_are_ended():
    (ended,) = acts(stored(job(JobState.STOPPING, state_since=NOW - 11), READY))
    assert isinstance(ended, EndGang)


@pytest.mark.parametrize(
    ("state", "timeout_s"),
    [
        (JobState.STOPPING, LifecycleLimits().stopped_upload_timeout_s),
        (JobState.FAILING, LifecycleLimits().failed_upload_timeout_s),
        (JobState.REQUEUING, LifecycleLimits().stop_timeout_s),
    ],
)
def test_an_agent_whose_ranks_have_ended_has_time_to_bring_their_files(state, timeout_s):
    def after(waited_s):
        return stored(job(state, state_since=NOW - waited_s), READY, EXITED)

    assert acts(after(timeout_s - 0.1), limits=LifecycleLimits()) == ()
    assert deadline_s(after(timeout_s - 0.1), observation(), LifecycleLimits()) <= 0.2
    (ended,) = acts(after(timeout_s + 0.1), limits=LifecycleLimits())
    assert isinstance(ended, EndGang)


def test_an_agent_gives_up_files_before_the_service_gives_up_the_agent():
    modes = {
        JobState.STOPPING: StopMode.INTERRUPT,
        JobState.FAILING: StopMode.ABORT,
        JobState.YIELDING: StopMode.YIELD,
        JobState.REQUEUING: StopMode.KILL,
    }
    for state, mode in modes.items():
        assert TIME_LEFT_S[mode] + 0.5 < LifecycleLimits().end_timeout_s(state, uploading=True)


def test_tasks_that_never_came_up_are_ended_with_their_job():
    here = stored(job(JobState.STOPPING, state_since=NOW), (task(0, TaskState.STARTED), task(1)))
    assert DropTasks(3, (30,), "") in acts(here)
    neither = (task(0, TaskState.STARTED), task(1, TaskState.STARTED))
    assert EndGang(3, "") in acts(stored(job(JobState.STOPPING, state_since=NOW), neither))


def test_ending_a_gang_frees_slots_only_when_nothing_is_left():
    here = stored(None, READY, target=GangTarget.END)
    assert acts(here, observation()) == (EndTask(READY[0]), EndTask(READY[1]))
    assert acts(here, observation(30, clean=(30,))) == (MarkEnded(READY[0]), EndTask(READY[1]))
    assert acts(here, observation(30)) == (EndTask(READY[0]), EndTask(READY[1])), "dead but not swept yet"
    assert acts(here, observation(missing=(30, 31))) == (MarkEnded(READY[0]), MarkEnded(READY[1]))


def test_an_attempt_whose_tasks_are_all_gone_is_cleared():
    gone = (task(0, TaskState.ENDED), task(1, TaskState.ENDED))
    here = stored(job(JobState.REQUEUING), gone, target=GangTarget.END)
    assert events(acts(here, observation(missing=(30, 31)))) == [JobEvent.ATTEMPT_CLEANED_UP]


def test_a_warm_gang_is_kept_for_its_time_and_not_when_it_is_broken():
    assert acts(stored(None, READY, idle_since=NOW - 119)) == ()
    assert acts(stored(None, READY, idle_since=NOW - 121)) == (EndGang(3, ""),)
    assert DropTasks(3, (31,), "") in acts(stored(None, READY, idle_since=NOW), observation(31))


def test_a_warm_gang_is_kept_while_its_job_waits_for_a_node_in_the_place_of_a_lost_one():
    waits = replace(job(JobState.QUEUED), gang_id=3, state_since=NOW - 5)
    idle = stored(None, READY, idle_since=NOW - 1000)
    held = replace(idle, jobs=(waits,))
    assert acts(idle) == (EndGang(3, ""),)
    assert acts(held) == (), "its tasks have the newest snapshot in their memory"
    assert deadline_s(held, observation(), LIMITS) > 1.0, "nothing to look at for that"
    assert acts(held, observation(30)) == (DropTasks(3, (30,), ""),)
    paused = replace(observation(), down={"node-1"})
    assert acts(held, paused) == (DropTasks(3, (31,), ""),), "it can start nowhere, and kept the slots"
    gangs = (replace(held.gangs[0], idle_since=NOW - 20),)
    assert acts(replace(held, gangs=gangs), paused) == (), "a Swarm's new leader knows no node at first"
    assert deadline_s(replace(held, gangs=gangs), observation(), LIMITS) <= 100
    assert acts(replace(idle, jobs=(replace(waits, gang_id=None),))) == (EndGang(3, ""),)
    for_ever = replace(idle, jobs=(replace(waits, state_since=NOW - LIMITS.recovery_hold_s),))
    assert acts(for_ever) == (EndGang(3, ""),), "held back by a quota, it kept the slots and used none"


def test_a_time_limit_ends_the_job_and_sets_the_deadline():
    limited = job(spec=SPEC.model_copy(update={"timeout_s": 40.0}))
    (seen,) = acts(stored(limited, READY))
    assert (seen.event, seen.error.kind) == (JobEvent.FAILURE_SEEN, ErrorKind.TIMEOUT)
    in_time = job(spec=SPEC.model_copy(update={"timeout_s": 52.0}))
    assert acts(stored(in_time, READY)) == ()
    assert deadline_s(stored(in_time, READY), observation(), LIMITS) == pytest.approx(2.05)


def test_nothing_to_wait_for_means_no_timer():
    assert deadline_s(StoredState((), (), (), (), ()), Observation({}, {}, NOW), LIMITS) is None


def test_limits_leave_room_for_the_agents_own_escalation():
    longest_s = max(sum(step.wait_s for step in steps) for steps in ESCALATION.values())
    assert LifecycleLimits().stop_timeout_s > longest_s + 1
