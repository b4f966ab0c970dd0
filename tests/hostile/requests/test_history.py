"""Long histories come in pages, lists lack tracebacks, and ended jobs take no memory."""

import gc
import json

import pytest
from sqlalchemy import event, func, select

from minicluster.wire import JobError
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store.jobs.reports import ERRORS_CHARS
from minicluster_hub.store.tables.main import RANKS
from minicluster_hub.support.rates import Rate

TRACEBACK = "t" * 60_000


async def failed_jobs(api, count, first=0):
    """Create jobs of Bob's that failed with a long traceback; return their ids."""
    error = JobError(kind="exception", message="m" * 3000, traceback=TRACEBACK)
    ids = []
    for number in range(first, count):
        job = await api.submit("bob", nodes=5, key=f"the-key-{number}")
        api.context.store.apply(job.id, JobEvent.FAILURE_SEEN, 1.0, error=error)
        ids.append(job.id)
    return ids


async def test_a_long_history_comes_page_by_page(api):
    job = await api.submit("bob", nodes=5)
    for number in range(450):
        api.context.store.note(job.id, "stalled", f"{number} {'x' * 1000}", 1.0)
    lines, pages, after = [], [], 0
    while True:
        answer = await api.ask("GET", f"api/jobs/{job.id}/history", "bob-token", params={"after": after})
        page = answer.json()
        pages.append(len(answer.content))
        lines += [line["text"].split()[0] for line in page["lines"] if line["kind"] == "stalled"]
        if not page["more"]:
            break
        after = page["lines"][-1]["id"]
    assert lines == [str(number) for number in range(450)]
    assert len(pages) == 3 and max(pages) < 300_000
    few = await api.ask("GET", f"api/jobs/{job.id}/history", "bob-token", params={"limit": 1})
    assert len(few.json()["lines"]) == 1 and few.json()["more"]
    many = await api.ask("GET", f"api/jobs/{job.id}/history", "bob-token", params={"limit": 10**6})
    assert many.status_code == 422


async def test_lists_have_no_tracebacks_and_the_job_has(api):
    ids = await failed_jobs(api, 20)
    answer = await api.ask("GET", "api/jobs", "bob-token")
    assert len(answer.content) < 20 * 2000
    assert {job["error"]["kind"] for job in answer.json()["jobs"]} == {"exception"}
    one = (await api.ask("GET", f"api/jobs/{ids[0]}", "bob-token")).json()
    assert one["error"]["traceback"] == TRACEBACK


async def test_a_list_costs_what_is_read_for_it_and_not_only_what_it_shows(start_api):
    async with start_api(user_rate=Rate(per_s=0.001, burst=90.0), refusal_s=0.0) as api:
        await failed_jobs(api, 20)
        assert (await api.ask("GET", "api/jobs", "bob-token")).status_code == 200
        assert (await api.ask("GET", "api/jobs", "bob-token")).status_code == 200
        assert (await api.ask("GET", "api/jobs", "bob-token")).status_code == 429, "1.2 MB each time"


@pytest.mark.full("a long list; the gate has short ones")
async def test_a_long_list_is_read_piece_by_piece_and_is_whole(api):
    ids = [(await api.submit("bob", nodes=5, key=f"the-key-{number}")).id for number in range(120)]
    for job_id in ids[:-1]:
        api.context.store.apply(job_id, JobEvent.STOP_ASKED, 1.0)
    for limit in (1000, 120, 110, 100, 1):
        data = (await api.ask("GET", "api/jobs", "bob-token", params={"limit": limit})).json()["jobs"]
        assert [job["id"] for job in data] == ids[::-1][:limit]


async def test_the_changes_of_all_jobs_have_no_tracebacks(api, listen):
    async with listen(api.client("bob-token"), "api/events") as events:
        (job_id,) = await failed_jobs(api, 1)
        api.context.status_cache.changes.notify(job_id)
        changes = {}
        while changes.get("id") != job_id or not changes.get("error"):
            _, changes, _ = (await events.until("job"))[-1]
    assert not changes["error"]["traceback"]


async def test_a_list_asks_the_database_as_often_for_many_as_for_few(api):
    asked = []
    engine = api.context.store._database._engine
    counts = {}
    for first, jobs in ((0, 5), (5, 40)):
        await failed_jobs(api, jobs, first)
        for _ in range(10):
            with listening(engine, asked):
                assert len((await api.ask("GET", "api/jobs", "bob-token")).json()["jobs"]) == jobs
            count = len([query for query in asked if "jobs" in query or "events" in query])
            counts[jobs] = min(count, counts.get(jobs, count))
            asked.clear()
    assert counts[40] <= counts[5] + 5, "the reconciler may look meanwhile"


class listening:
    def __init__(self, engine, asked):
        self.listen = engine, "before_cursor_execute", lambda *call: asked.append(call[2])

    def __enter__(self):
        event.listen(*self.listen)

    def __exit__(self, *_raised):
        event.remove(*self.listen)


async def test_jobs_that_are_over_stay_in_no_memory(api):
    await failed_jobs(api, 60)
    assert (await api.ask("GET", "api/jobs", "bob-token")).status_code == 200
    api.context.store.open_state()
    gc.collect()
    kept = [one for one in gc.get_objects() if isinstance(one, JobRecord) and one.state.terminal]
    assert len(kept) < 10


async def test_readers_of_a_job_hold_no_copy_of_it(api, listen):
    """Neither of its environment nor of its error, since there may be hundreds of readers."""
    job, _, _ = await api.running("bob", env={"LARGE": "x" * 30_000})
    async with listen(api.client("bob-token"), f"api/jobs/{job.id}/events") as events:
        await events.next()
        before = records_of(job.id)
        async with listen(api.client("bob-token"), f"api/jobs/{job.id}/events") as more:
            await more.next()
            assert records_of(job.id) <= before


def records_of(job_id):
    gc.collect()
    return len([one for one in gc.get_objects() if isinstance(one, JobRecord) and one.id == job_id])


async def test_errors_of_many_ranks_are_not_all_kept_in_full(start_api):
    """Every tick reads them while the job cleans up."""
    async with start_api(report_rate=Rate(1e9, 1e9)) as api:
        await tell_errors_of_many_ranks(api)


async def tell_errors_of_many_ranks(api):
    job, (agent,), (run,) = await api.running("bob", ranks_per_node=200)
    for first in range(0, 200, 50):
        ranks = [
            {"rank": rank, "state": "exited", "exit_code": 1, "error": error_of(rank)}
            for rank in range(first, first + 50)
        ]
        body = {"ready": True, "attempt": run.attempt, "ranks": ranks, "store_port": 4000}
        answer = await agent.http.post("api/tasks/report", content=json.dumps(body))
        assert answer.status_code == 200, answer.text
    with api.context.store._database.read() as connection:
        kept = connection.execute(select(func.sum(func.length(RANKS.c.error)))).scalar_one()
    assert kept < ERRORS_CHARS + 200 * 1000
    await agent.report(attempt=run.attempt, cleared=run.attempt)
    await api.until(job.id, "failed")
    assert api.context.store.job(job.id).error.traceback == TRACEBACK


def error_of(rank):
    return {"kind": "exception", "message": "boom", "traceback": TRACEBACK, "rank": rank, "at": 1.0 + rank}


async def test_long_specs_are_not_read_at_each_tick(api):
    """200 open jobs of one user with 100 KB each would delay all users several times a second."""
    job = await api.submit("bob", nodes=5, env={"A": "x" * 30_000})
    api.context.store.open_state()
    read = []

    def see(_connection, _cursor, statement, *_):
        read.append(statement)

    engine = api.context.store._database._engine
    event.listen(engine, "before_cursor_execute", see)
    try:
        stored = api.context.store.open_state()
    finally:
        event.remove(engine, "before_cursor_execute", see)
    assert [one.spec.env["A"] for one in stored.jobs if one.id == job.id] == ["x" * 30_000]
    assert read and not [one for one in read if "jobs.spec," in one or "jobs.spec \n" in one]
