"""Gangs that lose tasks, replace them, and grow while they run."""

import pytest

from minicluster.wire import BlobInfo, JobState, RankReport, RankState, TaskReport
from minicluster_hub.jobs.records import GangTarget
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store import GangTaken, SlotTaken
from minicluster_hub.store.jobs.reports import News


def lose(store, given, index=0):
    """Return a job whose gang lost a task, the gang's id, and the former tasks."""
    job, gang_id, tasks = given.admitted()
    store.apply(job.id, JobEvent.RANKS_STARTED, 3.0)
    store.apply(job.id, JobEvent.TASK_LOST, 4.0, lost_attempts=1)
    left = store.drop_tasks(gang_id, [tasks[index].id], 4.5)
    return job, gang_id, left, tasks


def test_a_lost_task_is_to_end_and_the_others_stay_with_their_job(store, given):
    job, gang_id, left, tasks = lose(store, given)
    gangs = {gang.id: gang for gang in store.open_state().gangs}
    assert (gangs[gang_id].target, gangs[gang_id].job_id) == (GangTarget.KEEP, job.id)
    assert (gangs[left].target, gangs[left].job_id) == (GangTarget.END, None)
    assert {task.id: task.gang_id for task in store.open_state().tasks} == {
        tasks[0].id: left,
        tasks[1].id: gang_id,
        tasks[2].id: gang_id,
    }
    assert store.job(job.id).lost_attempts == 1
    assert store.attempt_nodes(store.job(job.id).attempt_id) == ("node-1", "node-2", "node-3")


def test_what_a_lost_task_says_does_not_count(store, given):
    job, _, _, tasks = lose(store, given)
    report = TaskReport(
        ready=True,
        attempt=job.attempt_id,
        cleared=job.attempt_id,
        ranks=(RankReport(rank=0, state=RankState.EXITED, exit_code=0),),
        result=BlobInfo(sha256="b" * 64, size_bytes=3),
    )
    before = store.open_state()
    assert store.report(tasks[0], report, 5.0) is News.NOTHING
    assert store.open_state() == before


def test_the_lowest_rank_that_is_left_brings_the_result(store, given):
    job, _, _, tasks = lose(store, given)
    report = TaskReport(attempt=job.attempt_id, result=BlobInfo(sha256="b" * 64, size_bytes=3))
    assert store.report(tasks[2], report, 5.0) is News.NOTHING
    assert store.report(tasks[1], report, 5.0) is News.DECISIVE


def test_a_lost_task_is_not_awaited(store, given):
    job, _, _, tasks = lose(store, given)
    ends = [RankReport(rank=rank, state=RankState.EXITED, exit_code=0) for rank in range(3)]
    reports = [TaskReport(attempt=job.attempt_id, ranks=(end,)) for end in ends]
    assert store.report(tasks[1], reports[1], 5.0) is News.AWAITED
    assert store.report(tasks[2], reports[2], 5.0) is News.DECISIVE


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_job_goes_on_with_the_others(store, given, index):
    job, gang_id, _, tasks = lose(store, given, index)
    store.apply(job.id, JobEvent.ATTEMPT_CLEANED_UP, 5.0)
    store.bind(job.id, gang_id, 6.0)
    again = store.job(job.id)
    assert (again.state, again.attempts, again.gang_id, again.world_size) == (
        JobState.STARTING,
        2,
        gang_id,
        2,
    )
    others = [task.id for task in tasks if task.id != tasks[index].id]
    assert [(rank.rank, rank.task_id) for rank in store.open_state().ranks] == list(enumerate(others))


def test_the_job_goes_on_with_the_others_and_a_new_one_behind_them(store, given):
    job, gang_id, left, tasks = lose(store, given)
    store.apply(job.id, JobEvent.ATTEMPT_CLEANED_UP, 5.0)
    with pytest.raises(SlotTaken, match="node-1"):
        store.bind(job.id, gang_id, 6.0, [("node-1", (0,))])
    assert store.job(job.id).state is JobState.QUEUED
    store.bind(job.id, gang_id, 6.0, [("node-4", (1,))])
    stored = store.open_state()
    ranks = [rank.task_id for rank in stored.ranks]
    assert ranks[:2] == [tasks[1].id, tasks[2].id]
    (new,) = [task for task in stored.tasks if task.id == ranks[2]]
    assert (new.gang_id, new.node, new.slots, new.index) == (gang_id, "node-4", (1,), 3)
    store.end_gang(left)
    store.task_ended(tasks[0].id, 7.0)
    assert {(lease.node, lease.job_id) for lease in store.open_state().leases} == {
        (node, job.id) for node in ("node-2", "node-3", "node-4")
    }


def test_a_running_attempt_grows_by_ranks_behind_the_others(store, given):
    job, gang_id, tasks = given.admitted(fault_tolerant=True)
    with pytest.raises(GangTaken, match="starting"):
        store.grow(job.id, [("node-4", (0,))], 2.5)
    store.apply(job.id, JobEvent.RANKS_STARTED, 3.0)
    store.drop_tasks(gang_id, [tasks[2].id], 3.5)
    store.grow(job.id, [("node-4", (0,))], 4.0)
    stored = store.open_state()
    assert (stored.jobs[0].state, stored.jobs[0].attempts) == (JobState.RUNNING, 1)
    assert [(rank.rank, rank.state) for rank in stored.ranks][3] == (3, RankState.PENDING)
    new = next(task for task in stored.tasks if task.node == "node-4")
    assert (new.gang_id, stored.ranks[3].task_id) == (gang_id, new.id)
    assert "grown" in [event.kind for event in store.events(job.id)]
