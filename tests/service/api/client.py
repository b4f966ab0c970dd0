"""Helpers for requests to the service: as a notebook, as an agent, as a reader of events."""

import asyncio
import hashlib
import json
from uuid import uuid4

import httpx

from minicluster.wire import (
    Job,
    RankReport,
    RankState,
    ReportAnswer,
    StreamChunk,
    TaskOrders,
    TaskReport,
)

from ...patience import WITHIN_S, eventually

PREFIX = "/services/minicluster/"


class TaskEnded(AssertionError):
    """The service has ended the task; a real agent would exit."""


class Agent:
    """A simulated agent: one task's token and its reports."""

    def __init__(self, api, launch):
        self.task_id = launch.task_id
        headers = {"Authorization": f"task {launch.token}", "Minicluster-Wire": "1"}
        self.http = api.client(**headers)

    async def report(self, **report):
        message = TaskReport(**{"ready": True, "store_port": 4000, **report}).model_dump_json()
        answer = await self.http.post("api/tasks/report", content=message)
        while answer.status_code == 429:  # retry as real agents do: fast tests exceed the rate limit
            await asyncio.sleep(float(answer.headers["Retry-After"]))
            answer = await self.http.post("api/tasks/report", content=message)
        _check(answer)
        return ReportAnswer.model_validate_json(answer.content)

    async def orders(self, have=""):
        answer = await self.http.get("api/tasks/orders", params={"have": have})
        _check(answer)
        return TaskOrders.model_validate_json(answer.content)

    async def run_order(self):
        """Report that the agent is ready, and wait for a run order."""
        await self.report()
        orders = await self.orders()
        while orders.run is None:
            orders = await self.orders(orders.version)
        return orders.run

    async def start_ranks(self, run):
        await self.report(attempt=run.attempt, ranks=_ranks(run, RankState.STARTED))

    async def finish(self, run, **more):
        ranks = _ranks(run, RankState.EXITED, exit_code=0)
        await self.report(attempt=run.attempt, ranks=ranks, cleared=run.attempt, **more)

    async def say(self, run, stream, offset, data):
        chunk = StreamChunk.model_construct(stream=stream, offset=offset, data=data)
        return await self.report(attempt=run.attempt, chunks=(chunk,))


def _check(answer):
    if answer.status_code == 410:
        raise TaskEnded(answer.text)
    assert answer.status_code == 200, answer.text


def _ranks(run, state, **more):
    numbers = range(run.first_rank, run.first_rank + run.local_world_size)
    return tuple(RankReport(rank=number, state=state, **more) for number in numbers)


class Api:
    """The service under test, and helpers for requests to it."""

    def __init__(self, context, hub, engine, port):
        self.context, self.hub, self.engine = context, hub, engine
        self.url = f"http://127.0.0.1:{port}{PREFIX}"
        self.clients = []

    def client(self, token=None, **headers):
        auth = {"Authorization": f"token {token}"} if token else {}
        # The service uses plain HTTP here, and a client that can check certificates is slow to create.
        made = httpx.AsyncClient(
            base_url=self.url, headers={**auth, **headers}, timeout=WITHIN_S, verify=False
        )
        self.clients.append(made)
        return made

    async def ask(self, method, path, token="ada-token", **more):
        return await self.client(token).request(method, path, **more)

    async def submit(self, owner="ada", nodes=1, payload=b"a cell", key=None, run=None, **spec):
        """Submit a job as a notebook does; return it."""
        sha256 = hashlib.sha256(payload).hexdigest()
        token = f"{owner}-token"
        await self.ask("PUT", f"api/blobs/{sha256}", token, content=payload)
        spec = {"payload_sha256": sha256, "nodes": {"min": nodes, "max": nodes}, **spec}
        body = {"idempotency_key": key or uuid4().hex, "spec": spec, "run": run}
        answer = await self.ask("POST", "api/jobs", token, json=body)
        assert answer.status_code in (200, 201), answer.text
        return Job.model_validate_json(answer.content)

    async def agents(self, job_id):
        """Wait until the job's gang was started; return its agents in the gang's order.

        Raises TaskEnded if the job ends instead.
        """
        launches = await eventually(lambda: self._launches(job_id))
        return [Agent(self, launch) for launch in launches]

    def _launches(self, job_id):
        record, started = self.context.store.job(job_id), self.engine.launches
        if record.state.terminal:
            raise TaskEnded(f"{record}")
        tasks = [task for task in self.context.store.open_state().tasks if task.gang_id == record.gang_id]
        return all(task.id in started for task in tasks) and [started[task.id] for task in tasks]

    async def running(self, owner="ada", nodes=1, **spec):
        """Return a running job, its agents and their run orders."""
        job = await self.submit(owner, nodes, **spec)
        agents = await self.agents(job.id)
        runs = await asyncio.gather(*(agent.run_order() for agent in agents))
        for agent, run in zip(agents, runs, strict=True):
            await agent.start_ranks(run)
        await self.until(job.id, "running")
        return job, agents, runs

    async def until(self, job_id, state):
        await eventually(lambda: self.context.store.job(job_id).state == state)


class Events:
    """Server-sent events as read by a client: (name, data, id)."""

    def __init__(self, answer):
        self.answer = answer
        self.lines = answer.aiter_lines()
        self.keep_alives = 0

    async def next(self, timeout_s=WITHIN_S):
        """Return the next event; raises StopAsyncIteration if the server has closed the stream."""
        fields = {}
        async with asyncio.timeout(timeout_s):
            while True:
                line = await anext(self.lines)
                if not line and fields:
                    return fields["event"], json.loads(fields["data"]), fields.get("id", "")
                name, _, value = line.partition(": ")
                if line.startswith(":"):
                    self.keep_alives += 1
                elif line:
                    fields[name] = value

    async def kept_alive(self, times):
        """Wait until a stream without events was kept alive this often."""
        async with asyncio.timeout(WITHIN_S):
            while self.keep_alives < times:
                line = await anext(self.lines)
                assert not line or line.startswith(":"), line
                self.keep_alives += line.startswith(":")

    async def until(self, name):
        """Return all events up to the first with this name."""
        found = [await self.next()]
        while found[-1][0] != name:
            found.append(await self.next())
        return found
