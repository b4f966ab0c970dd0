"""Agents' reports, on SQLite and PostgreSQL: late and repeated messages do no harm."""

import pytest

from minicluster.wire import BlobInfo, ErrorKind, JobError, JobState, RankReport, RankState, TaskReport
from minicluster_hub.jobs.records import TaskState
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store.jobs.reports import News

SHA = "a" * 64


def ready(**more):
    return TaskReport(ready=True, address="10.0.0.1", store_port=29500, **more)


def test_a_task_is_found_by_its_newest_token_until_it_ends(store, given):
    _, _, (task, *_others) = given.admitted()
    assert store.task_by_token("") is None
    store.set_task_token(task.id, "1" * 64)
    store.set_task_token(task.id, "2" * 64)
    assert store.task_by_token("1" * 64) is None
    assert store.task_by_token("2" * 64).id == task.id
    store.task_started(task.id, 3.0)
    assert store.task_by_token("2" * 64).state is TaskState.STARTED
    store.task_ended(task.id, 4.0)
    assert store.task_by_token("2" * 64) is None


def test_a_task_that_is_ready_stays_so(store, given):
    job, _, (task, *_others) = given.admitted()
    assert store.report(task, ready(), 3.0)
    store.task_started(task.id, 4.0)
    assert not store.report(task, TaskReport(), 5.0)
    stored = store.open_state().tasks[0]
    assert (stored.state, stored.state_since) == (TaskState.READY, 3.0)
    assert (stored.address, stored.store_port) == ("10.0.0.1", 29500)
    assert store.job(job.id).state is JobState.STARTING


def test_ranks_that_are_ahead_of_others_decide_nothing(store, given):
    job, _, tasks = given.admitted()

    def report(rank, state, **more):
        ranks = (RankReport(rank=rank, state=state, exit_code=0 if state is RankState.EXITED else None),)
        return store.report(tasks[rank], TaskReport(attempt=job.attempt_id, ranks=ranks, **more), 3.0)

    assert [report(rank, RankState.STARTED) for rank in (2, 0)] == [News.AWAITED] * 2
    assert report(1, RankState.EXITED) is News.AWAITED
    assert report(2, RankState.EXITED, notes=("full disk",)) is News.DECISIVE
    assert report(0, RankState.EXITED) is News.DECISIVE
    assert report(0, RankState.EXITED) is News.NOTHING


def test_a_rank_that_failed_decides_whatever_the_others_do(store, given):
    job, _, tasks = given.admitted()
    error = JobError(kind=ErrorKind.EXIT, message="exit code 3", rank=0, exit_code=3)
    failed = RankReport(rank=0, state=RankState.EXITED, exit_code=3, error=error)
    assert store.report(tasks[0], TaskReport(attempt=job.attempt_id, ranks=(failed,)), 3.0) is News.DECISIVE


def test_doubled_and_late_reports_change_nothing(store, given):
    job, _, (task, *_others) = given.admitted()
    attempt = job.attempt_id
    error = JobError(kind=ErrorKind.EXIT, message="exit code 3", rank=0, exit_code=3)
    started = ready(attempt=attempt, ranks=(RankReport(rank=0, state=RankState.STARTED),))
    exited = ready(
        attempt=attempt,
        ranks=(RankReport(rank=0, state=RankState.EXITED, exit_code=3, error=error),),
        cleared=attempt,
    )
    assert store.report(task, started, 3.0)
    assert not store.report(task, started, 3.1)
    assert store.report(task, exited, 4.0)
    after = store.open_state()
    late = RankReport(rank=0, state=RankState.EXITED, exit_code=0)
    for report in (exited, started, ready(attempt=attempt, ranks=(late,), cleared=attempt)):
        assert not store.report(task, report, 5.0)
    assert store.open_state() == after
    assert (after.ranks[0].state, after.ranks[0].exit_code, after.ranks[0].error) == (
        RankState.EXITED,
        3,
        error,
    )
    assert after.tasks[0].cleaned_up_attempt_id == attempt


def test_a_late_report_does_not_bring_an_old_port_back(store, given):
    job, _, (task, *_others) = given.admitted()
    old = ready(attempt=job.attempt_id)
    new = TaskReport(ready=True, address="10.0.0.1", store_port=29501, cleared=job.attempt_id)
    store.report(task, old, 3.0)
    assert store.report(task, new, 4.0)
    assert not store.report(task, old, 5.0)
    assert store.open_state().tasks[0].store_port == 29501


def test_reports_of_one_task_in_many_threads_only_go_forward(store, given):
    job, _, (task, *_others) = given.admitted()
    attempt = job.attempt_id
    reports = [
        ready(attempt=attempt, ranks=(RankReport(rank=0, state=RankState.STARTED),)),
        ready(attempt=attempt, ranks=(RankReport(rank=0, state=RankState.EXITED, exit_code=0),)),
        ready(attempt=attempt, cleared=attempt),
    ]
    given.in_threads(6, lambda number: store.report(task, reports[number % 3], 3.0))
    stored = store.open_state()
    assert (stored.tasks[0].state, stored.tasks[0].cleaned_up_attempt_id) == (TaskState.READY, attempt)
    assert (stored.ranks[0].state, stored.ranks[0].exit_code) == (RankState.EXITED, 0)


def test_a_task_speaks_only_for_its_own_ranks_and_the_newest_attempt(store, given):
    first, gang_id, tasks = given.admitted()
    foreign = RankReport(rank=0, state=RankState.EXITED, exit_code=0)
    assert not store.report(tasks[1], TaskReport(attempt=first.attempt_id, ranks=(foreign,)), 3.0)
    store.apply(first.id, JobEvent.RANKS_SUCCEEDED, 4.0)
    second = given.job("key-0002")
    store.bind(second.id, gang_id, 5.0)
    old = TaskReport(attempt=first.attempt_id, ranks=(foreign,), result=BlobInfo(sha256=SHA, size_bytes=1))
    assert not store.report(tasks[0], old, 6.0)
    assert {rank.state for rank in store.open_state().ranks} == {RankState.PENDING}


def test_cleared_is_at_most_the_gangs_newest_attempt(store, given):
    job, _, (task, *_others) = given.admitted()
    assert store.report(task, TaskReport(cleared=2**40), 3.0)
    assert store.open_state().tasks[0].cleaned_up_attempt_id == job.attempt_id


def test_an_agents_first_failure_is_kept(store, given):
    _, _, (task, *_others) = given.admitted()
    first = JobError(kind=ErrorKind.START, message="torch cannot be imported")
    assert store.report(task, TaskReport(failure=first), 3.0)
    assert not store.report(task, TaskReport(failure=JobError(kind=ErrorKind.START, message="more")), 4.0)
    assert store.open_state().tasks[0].failure == first


def test_the_report_of_an_ended_task_is_nothing(store, given):
    _, _, (task, *_others) = given.admitted()
    store.task_ended(task.id, 3.0)
    assert not store.report(task, ready(), 4.0)
    assert store.open_state().tasks[0].state is TaskState.ENDED


def test_notes_come_into_the_history_once(store, given):
    job, _, (task, *_others) = given.admitted()
    report = TaskReport(attempt=job.attempt_id, notes=("rank 0 hung at exit", "rank 0 hung at exit"))
    assert store.report(task, report, 3.0)
    assert not store.report(task, report, 4.0)
    notes = [event.text for event in store.events(job.id) if event.kind == "note"]
    assert notes == ["rank 0 hung at exit"]


@pytest.mark.parametrize(
    ("event", "kept"), [(JobEvent.RANKS_SUCCEEDED, True), (JobEvent.FAILURE_SEEN, False)]
)
def test_rank_0s_result_is_the_jobs_when_the_ranks_succeeded(store, event, kept, given):
    job, _, tasks = given.admitted()
    result = BlobInfo(sha256="b" * 64, size_bytes=5_000_000_000)
    foreign = BlobInfo(sha256="c" * 64, size_bytes=1)
    assert not store.report(tasks[1], TaskReport(attempt=job.attempt_id, result=foreign), 3.0)
    assert store.report(tasks[0], TaskReport(attempt=job.attempt_id, result=result), 3.0)
    assert not store.report(tasks[0], TaskReport(attempt=job.attempt_id, result=foreign), 4.0)
    assert store.job(job.id).result is None
    assert store.apply(job.id, event, 5.0).result == (result if kept else None)
