"""2,000 waiting jobs: each tick does its work once for the queue, not for each job."""

import sys
from dataclasses import replace

import pytest
from sqlalchemy import event

from minicluster.wire import CountRange, JobSpec, JobSubmit
from minicluster_hub.control.scheduler_input import snapshot_of
from minicluster_hub.jobs.records import NodeView
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.scheduling.placement.pack import Pack
from minicluster_hub.scheduling.policies.fifo import Fifo
from minicluster_hub.scheduling.reasons import explain
from minicluster_hub.scheduling.scheduler import schedule
from minicluster_hub.store import Store
from minicluster_hub.store.jobs.jobs import insert_job

from ... import messages

COUNT = 2000
NODES = [NodeView(f"node-{number}", True, "127.0.0.1", ("gpu",)) for number in (1, 2)]


def queue(store):
    """Fill the queue in one transaction, since 2,000 transactions are slow."""
    with store._database.write() as connection:
        for number in range(COUNT):
            nodes = 1 if number else 3  # The first job waits for nodes, the others for jobs ahead.
            spec = JobSpec(payload_sha256="a" * 64, nodes=CountRange(min=nodes, max=nodes))
            request = JobSubmit(idempotency_key=f"key-{number:05}", spec=spec)
            insert_job(connection, "ada", request, float(number))


def snapshot(store):
    return snapshot_of(store.open_state(), NODES, 1e6)


def steps(call):
    """Return the number of executed Python lines, which does not depend on the machine's load."""
    count = 0

    def trace(_frame, kind, _argument):
        nonlocal count
        count += kind == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def counted(engine):
    """Return a list that grows with each query."""
    queries = []
    event.listen(engine, "before_cursor_execute", lambda *call: queries.append(call[2]))
    return queries


def test_a_tick_reads_what_is_new(sqlite: Store):
    queue(sqlite)
    queries = counted(sqlite._database._engine)
    before = sqlite.open_state()
    once = len(queries)
    assert once < 20
    again = sqlite.open_state()
    assert again == before
    assert len(queries) < 2 * once, "what is known is not read again"
    assert all(one is other for one, other in zip(before.jobs, again.jobs, strict=True))


def test_a_change_is_seen_in_spite_of_what_was_read_before(sqlite: Store):
    queue(sqlite)
    first = sqlite.open_state().jobs[0]
    sqlite.apply(first.id, JobEvent.STOP_ASKED, 5.0)
    assert first.id not in {job.id for job in sqlite.open_state().jobs}
    assert sqlite.job(first.id).state == "stopped"


@pytest.mark.full("it is about load")
def test_the_work_grows_with_the_queue_and_not_with_its_square(sqlite: Store):
    queue(sqlite)
    whole = snapshot(sqlite)
    half = replace(whole, jobs=whole.jobs[: COUNT // 2])
    assert steps(lambda: explain(whole)) < 2.2 * steps(lambda: explain(half))
    assert steps(lambda: schedule(whole, Fifo(), Pack())) < 2.2 * steps(
        lambda: schedule(half, Fifo(), Pack())
    )


@pytest.mark.full("a long queue; test_queue has a short one")
def test_each_job_is_told_its_place(sqlite: Store):
    queue(sqlite)
    waits = explain(snapshot(sqlite))
    assert [wait.position for wait in waits] == list(range(1, COUNT + 1))
    assert waits[0].reason.startswith("needs 3 nodes")
    assert waits[2].reason == f"waits for jobs 1, 2, which are {messages.AHEAD_OF_IT}"
    assert waits[-1].reason.startswith("waits for jobs 1, 2, 3 and 1996 more")


@pytest.mark.full("it is about load")
def test_many_jobs_are_found_at_once(sqlite: Store):
    queue(sqlite)
    queries = counted(sqlite._database._engine)
    ids = [job.id for job in sqlite.open_state().jobs]
    del queries[:]
    assert [job.id for job in sqlite.jobs_by_id([*ids, 10**9])] == ids
    assert len(queries) < 10
    assert sqlite.jobs_by_id([]) == []
