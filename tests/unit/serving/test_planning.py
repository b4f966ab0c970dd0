"""What happens to a model's replicas next, from what is wanted and what is there."""

from __future__ import annotations

from dataclasses import replace

from minicluster.wire import JobState
from minicluster_hub.serving.planning import ModelView, ReplicaView, next_steps

RUNS, WAITS, STARTS = JobState.RUNNING, JobState.QUEUED, JobState.STARTING


def replica(job_id: int, version: int, state: JobState = RUNS, **more: bool) -> ReplicaView:
    return ReplicaView(job_id, version, state, **{"ready": state is RUNS, **more})


def model(active: int, serving: int, *present: ReplicaView, replicas: int = 1, **more: object) -> ModelView:
    return ModelView(active, serving, replicas, present=present, **more)  # type: ignore[arg-type]


def test_a_new_model_gets_its_replicas_and_requests_once_one_answers() -> None:
    steps = next_steps(model(1, 0, replicas=2))
    assert (steps.serving, steps.start, steps.retire) == (0, {1: 2}, ())
    steps = next_steps(model(1, 0, replica(7, 1), replica(8, 1, STARTS), replicas=2))
    assert (steps.serving, steps.start, steps.retire) == (1, {}, ())


def test_the_old_version_answers_until_all_of_the_new_one_do() -> None:
    old = (replica(1, 1), replica(2, 1))
    view = model(2, 1, *old, replica(3, 2), replica(4, 2, STARTS), replicas=2)
    assert (next_steps(view).serving, next_steps(view).retire) == (1, ())
    ready = model(2, 1, *old, replica(3, 2), replica(4, 2), replicas=2)
    assert (next_steps(ready).serving, next_steps(ready).retire) == (2, (2, 1))


def test_replicas_that_wait_for_the_slots_of_the_old_version_do_not_hold_it_up() -> None:
    steps = next_steps(
        model(2, 1, replica(1, 1), replica(2, 1), replica(3, 2), replica(4, 2, WAITS), replicas=2)
    )
    assert (steps.serving, steps.retire) == (2, (2, 1))


def test_an_old_replica_makes_room_where_no_slot_is_free() -> None:
    waiting = (replica(3, 2, WAITS, waits=True), replica(4, 2, WAITS, waits=True))
    steps = next_steps(model(2, 1, replica(1, 1), replica(2, 1), *waiting, replicas=2))
    assert (steps.serving, steps.retire, steps.start) == (1, (2,), {})
    gone = model(2, 1, replica(1, 1), replica(2, 1, retired=True), *waiting, replicas=2)
    assert (next_steps(gone).retire, next_steps(gone).start) == ((), {})
    only = model(2, 1, replica(1, 1), replica(3, 2, WAITS, waits=True))
    assert next_steps(only).retire == (), "the last one goes on"


def test_a_version_that_does_not_come_up_leaves_the_one_before() -> None:
    view = model(2, 1, replica(1, 1), replica(3, 2, STARTS), failed=frozenset({2}))
    assert (next_steps(view).fall_back, next_steps(view).serving) == (1, 1)
    back = replace(view, active=1)
    assert (next_steps(back).retire, next_steps(back).start) == ((3,), {})


def test_a_model_whose_only_version_fails_starts_no_more() -> None:
    steps = next_steps(model(1, 0, failed=frozenset({1})))
    assert (steps.start, steps.fall_back, steps.serving) == ({}, 0, 0)


def test_a_replica_that_ended_is_replaced() -> None:
    assert next_steps(model(1, 1, replica(1, 1), replicas=2)).start == {1: 1}
    lost = model(2, 1, replica(3, 2, STARTS))
    assert next_steps(lost).start == {1: 1}, "the last one that answers is replaced during a change, too"


def test_fewer_replicas_end_those_that_do_not_answer_first() -> None:
    view = model(1, 1, replica(1, 1), replica(2, 1), replica(3, 1, STARTS), replica(4, 1, WAITS), replicas=2)
    assert next_steps(view).retire == (4, 3)
    assert next_steps(replace(view, replicas=1)).retire == (4, 3, 2)


def test_a_stopped_model_ends_all() -> None:
    view = model(1, 1, replica(1, 1), replica(2, 1, STARTS), replica(3, 1, retired=True), stopped=True)
    assert (next_steps(view).retire, next_steps(view).serving, next_steps(view).start) == ((1, 2), 0, {})


def test_it_comes_to_rest() -> None:
    settled = model(2, 2, replica(5, 2), replica(6, 2), replicas=2)
    steps = next_steps(settled)
    assert (steps.serving, steps.start, steps.retire, steps.fall_back) == (2, {}, (), 0)
