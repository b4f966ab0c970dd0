"""Tasks that cannot reach each other before their ranks start: which are dropped, and when."""

from dataclasses import replace

from minicluster.wire import CountRange, JobState, RankState
from minicluster_hub.jobs.actions import DropTasks
from minicluster_hub.jobs.connectivity import store_address, unreachable_message, unreachable_tasks
from minicluster_hub.jobs.orders import orders_for
from minicluster_hub.jobs.states import JobEvent

from .stored_states import (
    LIMITS,
    NOW,
    READY,
    SPEC,
    acts,
    deadline_s,
    events,
    gang_state_of,
    job,
    observation,
    stored,
    task,
)

THREE = tuple(task(index, address=f"task-{index}") for index in range(3))
PENDING = (RankState.PENDING, RankState.PENDING)
FLEXIBLE = SPEC.model_copy(update={"nodes": CountRange(min=1, max=2)})
MISSED = replace(observation(), unreached={30: (store_address(READY[1]),)})


def ways(**missing: tuple[int, ...]) -> dict[int, tuple[str, ...]]:
    """Return which tasks cannot reach which: t0=(1, 2)."""
    return {
        30 + int(name[1:]): tuple(store_address(THREE[other]) for other in others)
        for name, others in missing.items()
    }


def unreachable(**missing: tuple[int, ...]) -> list[int]:
    return [found.index for found in unreachable_tasks(THREE, ways(**missing))]


def starting(seconds_ago: float, **changes: object):
    tasks = tuple(replace(one, state_since=NOW - seconds_ago) for one in READY)
    return stored(job(JobState.STARTING, state_since=NOW - seconds_ago, **changes), tasks, PENDING)


def test_nobody_is_apart_where_all_reach_each_other():
    assert unreachable() == []
    assert unreachable(t0=(), t1=(), t2=()) == []
    assert unreachable_tasks(THREE, {30: ("elsewhere:1",)}) == (), "an address of none of them"


def test_who_is_missed_by_most_goes_first():
    assert unreachable(t0=(1,), t2=(1,)) == [1]
    assert unreachable(t1=(0, 2)) == [1], "told by itself alone"
    assert unreachable(t1=(0,), t2=(0,)) == [0], "the first one too"
    assert unreachable(t0=(1, 2), t1=(0, 2), t2=(0, 1)) == [2, 1]


def test_of_two_that_miss_each_other_the_newer_one_goes():
    assert unreachable(t0=(1,)) == unreachable(t1=(0,)) == unreachable(t0=(1,), t1=(0,)) == [1]


def test_a_sentence_names_the_nodes():
    assert unreachable_message(()) == ""
    assert unreachable_message(THREE[1:]).startswith("node-1, node-2 are not reached")
    assert unreachable_message(THREE[:1]).startswith("node-0 is not reached")


def test_orders_name_the_others_that_are_there():
    gang_state = gang_state_of(starting(1.0))
    assert orders_for(READY[0], gang_state).run.peers == ("127.0.0.1:4001",)
    assert orders_for(READY[1], gang_state).run.peers == ("127.0.0.1:4000",)


def test_a_job_that_can_goes_on_at_once_without_them():
    (seen,) = acts(starting(5.0, spec=FLEXIBLE, lost_attempts=2), MISSED)
    assert (seen.event, seen.lost_attempts) == (JobEvent.TASK_LOST, 2), "it is no attempt that failed"
    assert seen.reason == unreachable_message(THREE[1:2])


def test_one_that_needs_all_waits_a_while_and_looks_in_time():
    assert acts(starting(LIMITS.connectivity_timeout_s - 1), MISSED) == ()
    (seen,) = acts(starting(LIMITS.connectivity_timeout_s + 1, lost_attempts=1), MISSED)
    assert (seen.event, seen.lost_attempts) == (JobEvent.TASK_LOST, 2)
    until = deadline_s(starting(LIMITS.connectivity_timeout_s - 2), MISSED, LIMITS)
    assert until is not None and until < 2.1


def test_the_others_stay_together():
    requeuing = stored(job(JobState.REQUEUING, state_since=NOW), READY, PENDING)
    assert acts(requeuing, MISSED) == (DropTasks(3, (31,), ""),)


def test_ranks_that_run_are_no_matter_of_it():
    assert events(acts(stored(job(), READY), MISSED)) == []
