"""The store on SQLite and PostgreSQL: submitting, finding, and a job's steps."""

import pytest

from minicluster.wire import ErrorKind, JobError, JobSpec, JobState, JobSubmit
from minicluster_hub.jobs.states import TRANSITIONS, JobEvent, TransitionImpossible
from minicluster_hub.store import JobUnknown

SHA = "a" * 64
THREE_NODES = (("node-1", (0,)), ("node-2", (0,)), ("node-3", (0,)))


def test_a_submitted_job_is_queued_and_keeps_its_whole_spec(store, given):
    job = given.job(name="späte Zelle", env={"LR": "0.1"}, nodes={"min": 1, "max": 3}, timeout_s=5)
    assert (job.state, job.owner, job.created_at, job.attempts) == (JobState.QUEUED, "ada", 1.0, 0)
    assert job.spec == JobSpec(
        payload_sha256=SHA, name="späte Zelle", env={"LR": "0.1"}, nodes={"min": 1, "max": 3}, timeout_s=5
    )
    assert store.job(job.id) == job
    assert [(event.kind, event.text) for event in store.events(job.id)] == [("submitted", "späte Zelle")]


def test_the_same_key_is_the_same_job_for_one_owner_only(store, given):
    first, made = store.submit("ada", JobSubmit(idempotency_key="k" * 8, spec=JobSpec(payload_sha256=SHA)), 1)
    again, made_again = store.submit(
        "ada", JobSubmit(idempotency_key="k" * 8, spec=JobSpec(payload_sha256=SHA)), 2
    )
    other = given.job("k" * 8, owner="bob")
    assert (made, made_again) == (True, False)
    assert again == first
    assert other.id != first.id
    assert len(store.events(first.id)) == 1


def test_one_key_sent_by_many_at_once_makes_one_job(store, given):
    def send(_):
        return store.submit(
            "ada", JobSubmit(idempotency_key="same-key", spec=JobSpec(payload_sha256=SHA)), 1.0
        )

    answers = given.in_threads(8, send)
    assert len({job.id for job, _ in answers}) == 1
    assert sum(made for _, made in answers) == 1
    assert len(store.jobs(None)) == 1


def test_jobs_are_listed_newest_first_by_owner_and_state(store, given):
    first, second = given.job("key-0001"), given.job("key-0002")
    other = given.job("key-0003", owner="bob")
    store.apply(first.id, JobEvent.STOP_ASKED, 2.0)
    assert [job.id for job in store.jobs("ada")] == [second.id, first.id]
    assert [job.id for job in store.jobs("ada", open_only=True)] == [second.id]
    assert [job.id for job in store.jobs(None, limit=2)] == [other.id, second.id]


def test_unknown_ids_are_told_apart_from_empty_answers(store):
    assert store.job(7) is None
    assert store.last_event_id(7) == 0
    assert store.events(7) == []
    assert store.attempt_nodes(7) == ()
    with pytest.raises(JobUnknown, match="job 7"):
        store.apply(7, JobEvent.STOP_ASKED, 1.0)
    with pytest.raises(JobUnknown, match="job 7"):
        store.note(7, "note", "text", 1.0)


def test_events_go_on_from_an_id(store, given):
    job = given.job()
    store.note(job.id, "note", "rank 2 hung at exit", 2.0)
    store.apply(job.id, JobEvent.STOP_ASKED, 3.0, text="by ada")
    first, second, third = store.events(job.id)
    assert store.events(job.id, after=first.id) == [second, third]
    assert (second.kind, second.text, second.at) == ("note", "rank 2 hung at exit", 2.0)
    assert (third.kind, third.text) == ("stop-asked", "by ada")
    assert store.last_event_id(job.id) == third.id


def test_text_that_no_database_takes_is_kept_readable(store, given):
    job = given.job()
    store.note(job.id, "note", "a\x00b\udcff", 2.0)
    error = JobError(kind=ErrorKind.EXCEPTION, message="zero \x00 byte", traceback="\x00")
    store.apply(job.id, JobEvent.FAILURE_SEEN, 3.0, error=error)
    assert store.events(job.id)[1].text == "a\ufffdb?"
    assert store.job(job.id).error == error


@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("event", list(JobEvent))
def test_each_pair_of_the_table_and_no_other_is_a_step(store, state, event, given):
    job = given.job_in(state)
    assert job.state is state
    history = [line.kind for line in store.events(job.id)]
    target = TRANSITIONS.get((state, event))
    if target is None:
        with pytest.raises(TransitionImpossible, match=", ".join(history)):
            store.apply(job.id, event, 9.0)
        assert store.job(job.id) == job
        assert [line.kind for line in store.events(job.id)] == history
        return
    if event is JobEvent.ADMITTED:
        store.admit(job.id, THREE_NODES, 9.0)
        after = store.job(job.id)
    else:
        after = store.apply(job.id, event, 9.0)
    assert after.state is target
    moved = target is not state
    assert [line.kind for line in store.events(job.id)] == history + [event.value] * moved
    assert after.state_since == (9.0 if moved else job.state_since)
    assert after.ended_at == (9.0 if target.terminal else None)


def test_one_step_is_taken_once_however_many_see_it(store, given):
    job, _, _ = given.admitted()

    def take(_):
        try:
            store.apply(job.id, JobEvent.RANKS_STARTED, 3.0)
        except TransitionImpossible:
            return False
        return True

    assert sum(given.in_threads(6, take)) == 1
    assert [event.kind for event in store.events(job.id)] == ["submitted", "admitted", "ranks-started"]


def test_times_of_a_job_are_those_of_its_first_run_and_its_end(store, given):
    job, _, _ = given.admitted()
    assert store.apply(job.id, JobEvent.RANKS_STARTED, 3.0).started_at == 3.0
    store.apply(job.id, JobEvent.TASK_LOST, 4.0)
    again = store.apply(job.id, JobEvent.ATTEMPT_CLEANED_UP, 5.0)
    assert (again.state, again.ended_at, again.started_at) == (JobState.QUEUED, None, 3.0)
    places = [("node-4", (0,)), ("node-5", (0,))]
    store.admit(job.id, places, 6.0)
    store.apply(job.id, JobEvent.RANKS_STARTED, 7.0)
    over = store.apply(job.id, JobEvent.RANKS_SUCCEEDED, 8.0)
    assert (over.started_at, over.ended_at, over.attempts, over.world_size) == (3.0, 8.0, 2, 2)
    assert store.attempt_nodes(over.attempt_id) == ("node-4", "node-5")


def test_what_is_known_of_an_error_at_the_end_is_the_jobs_error(store, given):
    job, _, _ = given.admitted()
    first = JobError(kind=ErrorKind.TIMEOUT, message="the job ran too long")
    assert store.apply(job.id, JobEvent.FAILURE_SEEN, 3.0, error=first).error == first
    more = JobError(kind=ErrorKind.TIMEOUT, message="the job ran too long. Rank 1 never came.")
    over = store.apply(job.id, JobEvent.ATTEMPT_CLEANED_UP, 4.0, error=more)
    assert (over.state, over.error) == (JobState.FAILED, more)
    assert store.events(job.id)[2].text == "the job ran too long"


def test_an_error_found_only_at_the_end_is_kept(store, given):
    job, _, _ = given.admitted()
    store.apply(job.id, JobEvent.FAILURE_SEEN, 3.0)
    error = JobError(kind=ErrorKind.EXIT, message="rank 1 ended with exit code 3")
    assert store.apply(job.id, JobEvent.ATTEMPT_CLEANED_UP, 4.0, error=error).error == error


def test_a_new_attempt_has_an_error_of_its_own(store, given):
    job, _, _ = given.admitted()
    lost = JobError(kind=ErrorKind.LOST, message="node-2 was lost")
    store.apply(job.id, JobEvent.TASK_LOST, 3.0, error=lost)
    assert store.apply(job.id, JobEvent.ATTEMPT_CLEANED_UP, 4.0).error is None
    assert "node-2 was lost" in [event.text for event in store.events(job.id)]


def test_a_blob_belongs_to_who_sent_it(store, given):
    given.in_threads(4, lambda _: store.blobs.add("ada", SHA, 3_000_000_000, 1.0))
    assert not store.blobs.lacks("ada", [SHA])
    assert store.blobs.size("ada", SHA) == 3_000_000_000
    assert store.blobs.lacks("bob", [SHA]) == {SHA}
    assert store.blobs.size("bob", SHA) is None
