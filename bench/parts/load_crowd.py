"""All clients of the job service in bench/load.py, in one process.

Reads the tasks that the service starts from stdin, as load_service.py prints them. Prints "ready" when all
clients run, then runs until it is stopped; if a client fails, it exits with code 1.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

import httpx
from load_calls import PAGES, TASKS, Calls, bearer

from minicluster.wire import RankReport, RankState, StreamChunk, TaskOrders, TaskReport

NOTEBOOKS, QUEUED, GANGS = 50, 500, 20
OWNERS = 50
REPORT_EVERY_S = 1.0
LINE = b"step 1, loss 0.5\n"


class Agent:
    """One task's agent: its ranks start, then it reports each second with a line of output."""

    def __init__(self, http: httpx.AsyncClient, token: str) -> None:
        self.http = http
        self.headers = {"Authorization": f"task {token}", "Minicluster-Wire": "1"}

    async def report(self, **what: object) -> None:
        content = TaskReport(ready=True, store_port=4000, **what).model_dump_json()  # type: ignore[arg-type]
        answer = await self.http.post("api/tasks/report", content=content, headers=self.headers)
        answer.raise_for_status()

    async def run(self, started: Callable[[], None]) -> None:
        """Act as the agent until cancelled."""
        await self.report()
        orders = TaskOrders(version="")
        while (run := orders.run) is None:
            query = {"have": orders.version}
            answer = await self.http.get("api/tasks/orders", params=query, headers=self.headers)
            answer.raise_for_status()
            orders = TaskOrders.model_validate_json(answer.content)
        ranks = range(run.first_rank, run.first_rank + run.local_world_size)
        reports = tuple(RankReport(rank=rank, state=RankState.STARTED) for rank in ranks)
        await self.report(attempt=run.attempt, ranks=reports)
        started()
        offset = 0
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            chunk = StreamChunk.model_construct(stream=f"rank-{run.first_rank}", offset=offset, data=LINE)
            await self.report(attempt=run.attempt, chunks=(chunk,))
            offset += len(LINE)


class Crowd:
    """All clients of the service."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.starting, self.all_run = GANGS * TASKS, asyncio.Event()
        self.works = asyncio.TaskGroup()

    async def come(self) -> None:
        """Put the whole load on the service, and sustain it."""
        async with self.works:
            self.begin(self.play_agents())
            jobs = [(n % OWNERS, await self.calls.submit(n % OWNERS)) for n in range(GANGS + QUEUED)]
            await self.all_run.wait()
            for user, job in jobs[:NOTEBOOKS]:
                self.begin(self.follow(user, f"api/jobs/{job}/events"))
            for user in range(PAGES):
                self.begin(self.follow(user, "api/events"))
                await self.calls.page(user)
            print("ready", flush=True)

    def begin(self, work: Awaitable[None]) -> None:
        self.works.create_task(work)  # type: ignore[arg-type]

    async def play_agents(self) -> None:
        """Act as the agent of each task that the service starts."""
        while line := await asyncio.to_thread(sys.stdin.readline):
            self.begin(Agent(http_for(self.calls.url), json.loads(line)["token"]).run(self.count))

    def count(self) -> None:
        self.starting -= 1
        if not self.starting:
            self.all_run.set()

    async def follow(self, user: int, path: str) -> None:
        """Read an event stream as a page or a kernel does."""
        http = http_for(self.calls.url)
        async with http.stream("GET", path, headers=bearer(user), timeout=None) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_bytes():
                pass


def http_for(url: str) -> httpx.AsyncClient:
    """Return a separate HTTP client, as each user has one."""
    return httpx.AsyncClient(base_url=url, timeout=60, verify=False)


async def main(url: str) -> None:
    await Crowd(Calls(url, http_for(url))).come()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
