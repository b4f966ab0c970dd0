"""Leases and gangs on SQLite and PostgreSQL: no slot is ever held twice."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from minicluster.wire import JobState
from minicluster_hub.jobs.records import GangTarget, TaskState
from minicluster_hub.jobs.slot_numbers import halves
from minicluster_hub.jobs.states import JobEvent, TransitionImpossible
from minicluster_hub.store import GangTaken, SlotTaken, Store

THREE_NODES = (("node-1", (0,)), ("node-2", (0,)), ("node-3", (0,)))


def test_admission_makes_the_whole_gang(store, given):
    places = [("node-1", (0, 1)), ("node-2", (2, 3))]
    job, gang_id, tasks = given.admitted(places=places, slots_per_node=2)
    stored = store.open_state()
    assert (job.state, job.attempts, job.world_size, job.gang_id) == (JobState.STARTING, 1, 4, gang_id)
    assert [(task.index, task.node, task.slots, task.state) for task in tasks] == [
        (0, "node-1", (0, 1), TaskState.NEW),
        (1, "node-2", (2, 3), TaskState.NEW),
    ]
    assert [(rank.rank, rank.task_id) for rank in stored.ranks] == [
        (0, tasks[0].id),
        (1, tasks[0].id),
        (2, tasks[1].id),
        (3, tasks[1].id),
    ]
    assert {(lease.node, lease.slot, lease.task_id) for lease in stored.leases} == {
        ("node-1", 0, tasks[0].id),
        ("node-1", 1, tasks[0].id),
        ("node-2", 2, tasks[1].id),
        ("node-2", 3, tasks[1].id),
    }
    assert store.events(job.id)[-1].text == "attempt 1 on node-1, node-2"


def test_ranks_may_be_more_than_slots(store, given):
    job, _, tasks = given.admitted(ranks_per_node=2)
    by_task = [rank.task_id for rank in store.open_state().ranks]
    assert job.world_size == 6
    assert by_task == [task.id for task in tasks for _ in range(2)]


def test_a_held_slot_is_refused_by_name_and_changes_nothing(store, given):
    given.admitted(owner="bob", places=[("node-2", (0,))])
    job = given.job()
    before = store.open_state()
    with pytest.raises(SlotTaken, match=f"job {job.id} cannot be admitted: slot 0 of node-2 is held by task"):
        store.admit(job.id, THREE_NODES, 2.0)
    assert store.open_state() == before
    assert len(store.events(job.id)) == 1


def test_two_jobs_have_the_halves_of_a_slot_and_nobody_the_whole(store, given):
    first, second = halves(0)
    for half in (first, second):
        store.admit(given.job(key=f"key-{half:05}").id, [("node-1", (half,))], 2.0)
    assert [lease.slot for lease in store.open_state().leases] == [first, second]
    job = given.job(key="key-whole")
    for slot in (0, first, second):
        with pytest.raises(SlotTaken, match="slot 0 of node-1 is held by task"):
            store.admit(job.id, [("node-1", (slot,))], 2.0)
    store.task_ended(store.open_state().tasks[0].id, 3.0)
    with pytest.raises(SlotTaken):
        store.admit(job.id, [("node-1", (0,))], 3.0)
    store.admit(job.id, [("node-1", (first,))], 3.0)


def test_a_slot_twice_in_one_placement_is_refused(store, given):
    job = given.job()
    with pytest.raises(SlotTaken, match="twice"):
        store.admit(job.id, [("node-1", (0,)), ("node-1", (0,))], 2.0)
    assert store.open_state().gangs == ()


def test_no_slots_at_all_are_refused(store, given):
    job = given.job()
    with pytest.raises(ValueError, match="no slots"):
        store.admit(job.id, [], 2.0)


def test_only_a_queued_job_is_admitted(store, given):
    job, _, _ = given.admitted()
    before = store.open_state()
    with pytest.raises(TransitionImpossible):
        store.admit(job.id, [("node-9", (0,))], 3.0)
    assert store.open_state() == before


def test_a_slot_is_never_booked_twice_however_many_ask_at_once(store, database_url, given):
    """Each thread has its own store, as several services on one database would."""
    stores = [Store.open(database_url) for _ in range(6)]
    wanted = [given.job(f"key-{number:04}") for number in range(6)]

    nodes = [(f"node-{number:02}", (0, 1)) for number in range(40)]

    def book(number):
        order = nodes if number % 2 else nodes[::-1]
        try:
            stores[number].admit(wanted[number].id, order, 2.0)
        except SlotTaken:
            return False
        return True

    won = given.in_threads(6, book)
    for each in stores:
        each.close()
    assert sum(won) == 1
    stored = store.open_state()
    assert {lease.job_id for lease in stored.leases} == {wanted[won.index(True)].id}
    assert sorted(job.state for job in stored.jobs) == ["queued"] * 5 + ["starting"]
    assert (len(stored.gangs), len(stored.tasks), len(stored.ranks), len(stored.leases)) == (1, 40, 40, 80)


def test_the_gang_of_a_finished_job_is_warm_and_takes_the_owners_next_job(store, given):
    first, gang_id, tasks = given.admitted()
    store.apply(first.id, JobEvent.RANKS_SUCCEEDED, 5.0)
    stored = store.open_state()
    assert [(gang.job_id, gang.idle_since) for gang in stored.gangs] == [(None, 5.0)]
    assert {(lease.job_id, lease.warm) for lease in stored.leases} == {(None, True)}
    second = given.job("key-0002")
    store.bind(second.id, gang_id, 6.0)
    bound = store.job(second.id)
    assert (bound.state, bound.gang_id, bound.attempts) == (JobState.STARTING, gang_id, 1)
    assert bound.attempt_id > first.attempt_id
    stored = store.open_state()
    assert stored.tasks == tuple(tasks)
    assert [(gang.job_id, gang.idle_since) for gang in stored.gangs] == [(second.id, None)]
    assert {(lease.job_id, lease.warm) for lease in stored.leases} == {(second.id, False)}
    assert store.attempt_nodes(first.attempt_id) == store.attempt_nodes(bound.attempt_id)


def test_a_gang_that_is_not_free_is_refused_with_the_reason(store, given):
    first, gang_id, tasks = given.admitted()
    second, other = given.job("key-0002"), given.job("key-0003", owner="bob")
    with pytest.raises(GangTaken, match=f"bound to job {first.id}"):
        store.bind(second.id, gang_id, 3.0)
    store.apply(first.id, JobEvent.RANKS_SUCCEEDED, 4.0)
    with pytest.raises(GangTaken, match="another owner"):
        store.bind(other.id, gang_id, 5.0)
    store.task_ended(tasks[1].id, 6.0)
    with pytest.raises(GangTaken, match=f"task {tasks[1].id} has ended"):
        store.bind(second.id, gang_id, 7.0)
    store.end_gang(gang_id)
    with pytest.raises(GangTaken, match="being ended"):
        store.bind(second.id, gang_id, 8.0)
    with pytest.raises(GangTaken, match="no such gang"):
        store.bind(second.id, 99, 9.0)
    assert store.job(second.id) == second


def test_a_warm_gang_is_given_once_however_many_ask_at_once(store, given):
    first, gang_id, _ = given.admitted()
    store.apply(first.id, JobEvent.RANKS_SUCCEEDED, 3.0)
    waiting = [given.job(f"key-1{number:03}") for number in range(6)]

    def take(number):
        try:
            store.bind(waiting[number].id, gang_id, 4.0)
        except GangTaken:
            return False
        return True

    assert sum(given.in_threads(6, take)) == 1
    assert len([job for job in store.open_state().jobs if job.state is JobState.STARTING]) == 1


def test_ended_tasks_free_their_slots_and_leave_the_world_together(store, given):
    job, gang_id, tasks = given.admitted()
    store.apply(job.id, JobEvent.RANKS_SUCCEEDED, 3.0)
    store.end_gang(gang_id)
    assert store.open_state().gangs[0].target is GangTarget.END
    for task in tasks[:2]:
        store.task_ended(task.id, 4.0)
        store.task_ended(task.id, 9.0)
    stored = store.open_state()
    assert [(task.state, task.state_since) for task in stored.tasks] == [
        (TaskState.ENDED, 4.0),
        (TaskState.ENDED, 4.0),
        (TaskState.NEW, 2.0),
    ]
    assert [lease.node for lease in stored.leases] == ["node-3"]
    store.task_ended(tasks[2].id, 5.0)
    stored = store.open_state()
    assert (stored.gangs, stored.tasks, stored.leases) == ((), (), ())
    assert store.attempt_nodes(job.attempt_id) == ("node-1", "node-2", "node-3")


def test_the_world_is_one_moment(store, given):
    """A reader beside a writer never sees half of a transaction."""
    job, seen = given.job(), 0

    def change():
        # Run until the reader had its turns, even on a busy machine, but not forever.
        for number in range(2000):
            if number >= 20 and seen > 5:
                return
            gang_id = store.admit(job.id, THREE_NODES, 2.0 + number)
            store.apply(job.id, JobEvent.TASK_LOST, 2.5 + number)
            store.apply(job.id, JobEvent.ATTEMPT_CLEANED_UP, 2.6 + number)
            for task in store.open_state().tasks:
                store.task_ended(task.id, 2.7 + number)
            assert gang_id not in {gang.id for gang in store.open_state().gangs}

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        while not changing.done():
            given.check_invariants(store.open_state())
            seen += 1
        changing.result()
    assert seen > 5
