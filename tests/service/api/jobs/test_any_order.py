"""Reports that are late, repeated or reordered: the job's end, log and slots stay the same."""

import asyncio
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minicluster.wire import ErrorKind, JobError, RankReport, RankState, StreamChunk, TaskReport

from ....patience import eventually

OUTPUT = bytes(range(97, 123)) * 3
PIECE = 20


def life(run, fails):
    """Return all messages of an agent in an attempt, in order."""

    def rank(state, **more):
        return (RankReport(rank=run.first_rank, state=state, **more),)

    stream = f"rank-{run.first_rank}"
    fields = {"ready": True, "store_port": 4000, "attempt": run.attempt}
    reports = [
        TaskReport(**fields, ranks=rank(RankState.PENDING)),
        TaskReport(**fields, ranks=rank(RankState.STARTED)),
    ]
    for offset in range(0, len(OUTPUT), PIECE):
        data = OUTPUT[offset : offset + PIECE]
        chunk = StreamChunk.model_construct(stream=stream, offset=offset, data=data)
        reports.append(TaskReport(**fields, ranks=rank(RankState.STARTED), chunks=(chunk,)))
    error = (
        JobError(kind=ErrorKind.EXCEPTION, message="ValueError: no", rank=run.first_rank) if fails else None
    )
    ended = rank(RankState.EXITED, exit_code=int(fails), error=error)
    reports.append(TaskReport(**fields, ranks=ended))
    return reports, TaskReport(**fields, ranks=ended, cleared=run.attempt)


async def deliver(api, agents, lives, order):
    """Deliver each message of `order`, then those that an agent repeats until they are acknowledged.

    The end of a rank is none of the former: an agent reports it once its output is stored.
    """
    for who, which in order:
        *before_its_end, _ = lives[who][0]
        await post(agents[who], before_its_end[which % len(before_its_end)])
    for agent, (reports, last) in zip(agents, lives, strict=True):
        for report in (*reports, last, last):
            await post(agent, report)


async def post(agent, report):
    answer = await agent.http.post("api/tasks/report", content=report.model_dump_json())
    assert answer.status_code in (200, 410), answer.text


@pytest.mark.full("drawn at random; each order is tested by name")
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    order=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8)), max_size=25),
    fails=st.tuples(st.booleans(), st.booleans()),
)
async def test_whatever_the_order_each_job_ends_as_it_went(start_api, tmp_path, order, fails):
    for path in tmp_path.iterdir():  # Hypothesis calls this repeatedly within one test.
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    await one_job(start_api, order, fails)


async def one_job(start_api, order, fails):
    async with start_api() as api:
        job = await api.submit(nodes=2)
        agents = await api.agents(job.id)
        runs = await asyncio.gather(*(agent.run_order() for agent in agents))
        lives = [life(run, fail) for run, fail in zip(runs, fails, strict=True)]
        await deliver(api, agents, lives, order)
        await api.until(job.id, "failed" if any(fails) else "succeeded")
        for run in runs:
            assert api.context.logs.read(job.id, 1, f"rank-{run.first_rank}", 0, 10_000) == OUTPUT
        # Messages after the end change nothing, and the next job gets the slots.
        record = api.context.store.job(job.id)
        for agent, (reports, last) in zip(agents, lives, strict=True):
            for report in (reports[0], reports[1], last):
                await post(agent, report)
        assert api.context.store.job(job.id) == record
        again = await api.submit(nodes=3)
        await eventually(lambda: api.context.store.job(again.id).state != "queued")
        leases = [lease for lease in api.context.store.open_state().leases if lease.job_id == job.id]
        assert not leases
