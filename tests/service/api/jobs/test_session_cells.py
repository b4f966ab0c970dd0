"""Cells of a session over the API, with simulated agents: who may do what, and what ends a cell."""

import asyncio
import base64

import pytest

from minicluster.wire import JobError, NoticeEvent, NoticeSettings
from minicluster.wire.sessions import CellEnd, CellProgress, CellState, NextCell, SessionCell
from minicluster_hub.jobs.states import JobEvent

from ....patience import WITHIN_S, eventually

CELL = {"payload": base64.b64encode(b"a cell").decode()}


class Session:
    """A session whose ranks a test plays."""

    def __init__(self, api, job, agents, runs):
        self.api, self.job, self.agents, self.runs = api, job, agents, runs
        self.path = f"api/jobs/{job.id}/cells"

    async def submit(self, key="key-00001", attempt=1, owner="ada", **cell):
        body = {**(cell or CELL), "idempotency_key": key, "attempt": attempt}
        return await self.api.ask("POST", self.path, f"{owner}-token", json=body)

    async def over(self, number):
        """Return a cell once it is over."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                answer = await self.api.ask("GET", f"{self.path}/{number}")
                cell = SessionCell.model_validate_json(answer.content)
                if cell.state.over:
                    return cell

    async def tell(self, number, agent, *ends, **more):
        """Report how ranks ended a cell as their agent does; return the next cell."""
        run = self.runs[agent]
        ranks = ends or [CellEnd(rank=run.first_rank)]
        progress = CellProgress(attempt=run.attempt, number=number, ends=tuple(ranks), **more)
        answer = await self.agents[agent].http.post("api/tasks/cells", content=progress.model_dump_json())
        assert answer.status_code == 200, answer.text
        return NextCell.model_validate_json(answer.content).cell

    async def ended(self, number, *agents):
        """Let the ranks of these agents end a cell; what they are answered is of no concern."""
        for agent in agents or range(len(self.agents)):
            asking = asyncio.create_task(self.tell(number, agent))
            await asyncio.wait([asking], timeout=0.2)
            asking.cancel()


@pytest.fixture
async def session(start_api):
    async with start_api(orders_hold_s=0.5) as api:
        yield Session(api, *await api.running(nodes=2, session=True))


async def test_a_cell_runs_on_all_ranks_and_is_over_when_the_last_has_ended(session):
    submitting = asyncio.create_task(session.submit())
    orders = [await session.tell(0, agent) for agent in range(2)]
    assert [order.number for order in orders] == [1, 1] and orders[0].payload == b"a cell"
    await session.ended(1, 0)
    assert session.api.context.sessions.record(session.job.id, 1).state is CellState.RUNNING
    await session.ended(1, 1)
    cell = await session.over(1)
    assert cell.state is CellState.SUCCEEDED and cell.error is None
    assert (await submitting).status_code == 200


async def test_the_same_key_is_the_same_cell_and_another_waits_its_turn(session):
    first = SessionCell.model_validate_json((await session.submit()).content)
    again = SessionCell.model_validate_json((await session.submit()).content)
    assert (first.number, again.number) == (1, 1)
    answer = await session.submit("key-00002")
    assert answer.status_code == 409 and "still runs cell 1" in answer.text
    await session.ended(1)
    await session.over(1)
    answer = await session.submit("key-00002")
    assert SessionCell.model_validate_json(answer.content).number == 2
    assert SessionCell.model_validate_json((await session.submit()).content).number == 1, "the first key"


async def test_only_the_owner_sees_and_runs_cells(session):
    assert (await session.submit(owner="bob")).status_code == 404
    await session.submit()
    for path in ("", "/1", "/1/events", "/1/result"):
        assert (await session.api.ask("GET", f"{session.path}{path}", "bob-token")).status_code == 404
    answer = await session.api.ask("POST", f"{session.path}/1/interrupt", "bob-token")
    assert answer.status_code == 404


async def test_a_payload_of_somebody_else_is_refused(session):
    answer = await session.submit(payload_sha256="ab" * 32)
    assert answer.status_code == 409 and "missing" in answer.text


async def test_an_ordinary_job_takes_no_cells(session):
    job = await session.api.submit(payload=b"another cell")
    answer = await session.api.ask(
        "POST", f"api/jobs/{job.id}/cells", json={**CELL, "idempotency_key": "k" * 8}
    )
    assert answer.status_code == 409 and "is no session" in answer.text


async def test_a_task_tells_of_its_own_ranks_only(session):
    await session.submit()
    first = session.runs[0].first_rank
    others = [CellEnd(rank=run.first_rank) for run in session.runs]
    asking = asyncio.create_task(session.tell(1, 0, *others))
    await asyncio.wait([asking], timeout=0.2)
    asking.cancel()
    assert session.api.context.sessions._open[session.job.id].ends.keys() == {first}


async def test_ranks_that_began_different_collectives_fail_the_cell_and_get_a_new_group(session):
    await session.submit()
    ends = [
        CellEnd(rank=run.first_rank, collectives=count)
        for run, count in zip(session.runs, (3, 2), strict=True)
    ]
    for agent, end in enumerate(ends):
        asking = asyncio.create_task(session.tell(1, agent, end))
        await asyncio.wait([asking], timeout=0.2)
        asking.cancel()
    cell = await session.over(1)
    assert cell.state is CellState.FAILED and "2 on rank 1; 3 on rank 0" in cell.error.message
    await session.submit("key-00002")
    assert (await session.tell(1, 0)).group == 1


async def test_a_stopped_session_ends_its_cell(session):
    await session.submit()
    await session.api.ask("POST", f"api/jobs/{session.job.id}/stop")
    for agent, run in zip(session.agents, session.runs, strict=True):
        await agent.finish(run)
    cell = await session.over(1)
    assert cell.state is CellState.FAILED and "is stopped" in cell.error.message
    answer = await session.submit("key-00002")
    assert answer.status_code == 409 and "is stopped" in answer.text


async def test_a_session_that_made_room_refuses_a_cell_that_counts_on_its_names(session):
    await session.submit()
    api, job = session.api, session.job
    api.context.reconciler.apply_event(job.id, JobEvent.PREEMPTED, "job 9 needs its slots")
    cell = await session.over(1)
    assert cell.state is CellState.FAILED and "made room" in cell.error.message
    assert (await session.submit("key-00002")).status_code == 409
    for agent, run in zip(session.agents, session.runs, strict=True):
        await agent.finish(run)
    await eventually(lambda: api.context.store.job(job.id).attempts == 2)
    agents = await api.agents(job.id)
    for agent, run in [(agent, await agent.run_order()) for agent in agents]:
        await agent.start_ranks(run)
    await api.until(job.id, "running")
    answer = await session.submit("key-00002")
    assert answer.status_code == 409 and "its ranks are new" in answer.text
    answer = await session.submit("key-00002", attempt=2)
    assert answer.status_code == 200


async def test_a_cell_s_error_is_that_of_the_rank_that_failed_first(session):
    await session.submit()
    for agent, run in enumerate(session.runs):
        error = JobError(
            kind="exception", message=f"no {run.first_rank}", rank=run.first_rank, at=5.0 - agent
        )
        asking = asyncio.create_task(session.tell(1, agent, CellEnd(rank=run.first_rank, error=error)))
        await asyncio.wait([asking], timeout=0.2)
        asking.cancel()
    cell = await session.over(1)
    assert cell.error.message == "no 1"


async def test_a_cell_s_events_are_those_of_a_job_that_ends_with_it(session, listen):
    await session.submit()
    agent, run = session.agents[0], session.runs[0]
    await agent.say(run, "rank-0", 0, b"of cell 1\n")
    async with listen(session.api.client("ada-token"), f"{session.path}/1/events") as events:
        name, job, _ = await events.next()
        assert (name, job["cell_number"], job["state"]) == ("job", 1, "running")
        assert (await events.next())[1]["text"] == "of cell 1\n"
        await session.ended(1)
        found = await events.until("end")
    assert found[-1][1]["state"] == "succeeded" and found[-1][1]["ended_at"]
    await session.submit("key-00002")
    await agent.say(run, "rank-0", 10, b"of cell 2\n")
    for number in (1, 2):
        async with listen(session.api.client("ada-token"), f"{session.path}/{number}/events") as events:
            texts = [
                data["text"] for name, data, _ in [await events.next(), await events.next()] if name == "log"
            ]
        assert texts == [f"of cell {number}\n"]


async def test_an_idle_sessions_owner_is_warned_once_by_a_notice(session):
    sessions, store = session.api.context.sessions, session.api.context.store
    settings = NoticeSettings(events=(NoticeEvent.SESSION_IDLE,), webhook="https://hooks.example.org/x")
    store.notices.save_settings("ada", settings)
    await session.api.until(session.job.id, "running")
    began = session.api.context.clock()
    for idle_s in (60.0, 1090.0, 1095.0):
        sessions._clock = lambda idle_s=idle_s: began + idle_s
        sessions._end_idle()
        assert bool(store.notices.queues()) is (idle_s > 1080.0)
    message, _ = store.notices.next(("ada", "webhook"))
    assert message.notice.job_id == session.job.id
    assert "it ends in 2 min, unless it runs a cell" in message.notice.reason
    store.notices.done(message)
    assert not store.notices.queues()
