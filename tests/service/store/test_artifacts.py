"""Output files, on SQLite and PostgreSQL."""

from minicluster.wire import ArtifactReport, BlobInfo, TaskReport
from minicluster_hub.jobs.states import JobEvent


def file(path, content="a", part=0):
    blob = BlobInfo(sha256=content.rjust(64, "0"), size_bytes=10)
    return ArtifactReport(path=path, part=part, blob=blob)


def report_artifacts(store, task, attempt, *files, at=5.0):
    return store.report(task, TaskReport(attempt=attempt, artifacts=files), at)


def paths(store, job):
    return sorted((one.path, one.part) for one in store.artifacts.listed(job.id, 100))


def test_files_are_kept_once_however_often_they_are_told(store, given):
    job, _, (first, second, *_others) = given.admitted()
    assert report_artifacts(store, first, job.attempt_id, file("b"), file("Ä/a"), file("a"))
    assert not report_artifacts(store, first, job.attempt_id, file("b"))
    assert report_artifacts(store, second, job.attempt_id, file("b", part=1))
    assert paths(store, job) == [("a", 0), ("b", 0), ("b", 1), ("Ä/a", 0)]
    assert store.artifacts.find(job.id, "b").part == 0
    assert store.artifacts.find(job.id, "b", 1).part == 1
    assert store.artifacts.find(job.id, "b", 2) is None


def test_pages_together_are_all_of_them(store, given):
    """They are complete for any collation of the database."""
    job, _, (first, second, *_others) = given.admitted()
    for task, part in ((first, 0), (second, 1)):
        names = ("b", "B", "a/b", "a b", "Ä", "a", "z", "%", "1", "10", "2")
        report_artifacts(store, task, job.attempt_id, *(file(name, part=part) for name in names))
    whole = store.artifacts.listed(job.id, 100)
    pages = store.artifacts.listed(job.id, 3)
    while len(page := store.artifacts.listed(job.id, 3, (pages[-1].part, pages[-1].path))) == 3:
        pages += page
    assert [*pages, *page] == whole and len(whole) == 22
    assert [one.part for one in whole] == [0] * 11 + [1] * 11


def test_what_another_attempt_tells_is_not_kept(store, given):
    job, _, (task, *_others) = given.admitted()
    assert not report_artifacts(store, task, job.attempt_id + 1, file("a"))
    assert paths(store, job) == []


def test_a_later_attempt_replaces_what_it_writes_and_leaves_the_rest(store, given):
    job, gang_id, (task, *_others) = given.admitted()
    report_artifacts(store, task, job.attempt_id, file("early"), file("both"))
    for event in (JobEvent.RANKS_STARTED, JobEvent.TASK_LOST, JobEvent.ATTEMPT_CLEANED_UP):
        store.apply(job.id, event, 6.0)
    store.bind(job.id, gang_id, 7.0)
    report_artifacts(store, task, store.job(job.id).attempt_id, file("both", "b"), file("late"))
    assert paths(store, job) == [("both", 0), ("early", 0), ("late", 0)]
    assert store.artifacts.blobs(job.id) == {content.rjust(64, "0") for content in "ab"}


def test_only_jobs_that_ended_long_ago_are_due_and_a_few_at_a_time(store, given):
    job, _, (task, *_others) = given.admitted()
    report_artifacts(store, task, job.attempt_id, file("a"))
    assert store.artifacts.ended_before(1e12, 5) == []
    for event in (JobEvent.RANKS_STARTED, JobEvent.STOP_ASKED, JobEvent.ATTEMPT_CLEANED_UP):
        store.apply(job.id, event, 100.0)
    assert store.artifacts.ended_before(100.0, 5) == []
    assert store.artifacts.ended_before(100.1, 5) == [job.id]
    assert store.artifacts.ended_before(100.1, 0) == []
    store.artifacts.forget(job.id)
    assert store.artifacts.ended_before(100.1, 5) == []
    assert paths(store, job) == []
