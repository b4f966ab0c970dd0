"""A job's snapshots, on SQLite and PostgreSQL: only complete ones count, the newest are retained."""

from minicluster.wire import BlobInfo, SnapshotReport, TaskReport
from minicluster_hub.jobs.states import JobEvent


def part(step, attempt, *, part=0, parts=1, keep=2, digit="a"):
    blob = BlobInfo(sha256=f"{step:x}{attempt:x}{part:x}".rjust(64, digit), size_bytes=10)
    return SnapshotReport(step=step, attempt=attempt, blob=blob, part=part, parts=parts, keep=keep)


def report_snapshots(store, task, attempt, *parts, at=5.0):
    return store.report(task, TaskReport(attempt=attempt, snapshots=parts), at)


def steps(store):
    return [(one.attempt_id, one.step) for one in store.open_state().snapshots]


def test_a_snapshot_counts_when_all_its_parts_are_there(store, given):
    job, _, (task, *_others) = given.admitted()
    attempt = job.attempt_id
    assert report_snapshots(store, task, attempt, part(7, attempt, parts=2))
    assert steps(store) == []
    assert report_snapshots(store, task, attempt, part(7, attempt, part=1, parts=2))
    assert steps(store) == [(attempt, 7)]
    assert not report_snapshots(store, task, attempt, part(7, attempt, part=1, parts=2))
    (listed,) = store.snapshots.listed(job.id)
    assert (listed.step, listed.attempt, listed.size_bytes, listed.created_at) == (7, 1, 20, 5.0)


def test_what_another_attempt_tells_is_not_kept(store, given):
    job, _, (task, *_others) = given.admitted()
    assert not report_snapshots(store, task, job.attempt_id, part(7, job.attempt_id + 1))
    assert not report_snapshots(store, task, job.attempt_id + 1, part(7, job.attempt_id + 1))
    assert steps(store) == []


def test_the_newest_are_kept_and_the_files_of_the_others_are_named(store, given):
    job, _, (task, *_others) = given.admitted()
    attempt = job.attempt_id
    parts = [part(step, attempt) for step in (10, 20, 30)]
    for one in parts:
        report_snapshots(store, task, attempt, one)
    assert store.snapshots.prune(job.id, 2) == {parts[0].blob.sha256}
    assert steps(store) == [(attempt, 20), (attempt, 30)]
    assert store.snapshots.prune(job.id, 2) == frozenset()
    assert store.snapshots.blobs(job.id) == {one.blob.sha256 for one in parts[1:]}


def test_an_unfinished_snapshot_outlives_pruning_if_it_is_newer(store, given):
    job, _, (task, *_others) = given.admitted()
    attempt = job.attempt_id
    report_snapshots(store, task, attempt, part(10, attempt))
    report_snapshots(store, task, attempt, part(20, attempt, parts=2))
    assert store.snapshots.prune(job.id, 1) == frozenset()
    report_snapshots(store, task, attempt, part(20, attempt, part=1, parts=2))
    assert store.snapshots.prune(job.id, 1) == {part(10, attempt).blob.sha256}
    assert steps(store) == [(attempt, 20)]


def test_a_later_attempt_that_began_again_is_newer_whatever_its_step(store, given):
    job, gang_id, (task, *_others) = given.admitted()
    report_snapshots(store, task, job.attempt_id, part(5, job.attempt_id), part(100, job.attempt_id))
    for event in (JobEvent.RANKS_STARTED, JobEvent.TASK_LOST, JobEvent.ATTEMPT_CLEANED_UP):
        store.apply(job.id, event, 6.0)
    store.bind(job.id, gang_id, 7.0)
    again = store.job(job.id)
    report_snapshots(store, task, again.attempt_id, part(5, again.attempt_id))
    assert steps(store) == [(job.attempt_id, 100), (again.attempt_id, 5)]
    store.snapshots.prune(job.id, 1)
    assert steps(store) == [(again.attempt_id, 5)]
