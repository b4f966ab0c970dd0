"""An agent's connection to several job services: from a dead, frozen or standby one it moves to the next."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from minicluster.runtime.agent.client import AgentClient, ServiceUnavailable
from minicluster.wire import TaskOrders, TaskReport
from minicluster_hub.app import MiniclusterHub

WELL = b'{"sizes": {}}'
STANDING_BY = b'{"error": {"code": "not_leading", "message": "it stands by", "hint": ""}}'


class OneService:
    """A service in the state `leads`, `stands by` or `silent` (frozen); records requests."""

    def __init__(self, mood):
        self.mood = mood
        self.asked = []

    async def serve(self, reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split(b" ")[1].decode()
            self.asked.append(path.partition("?")[0])
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
            if self.mood == "silent":
                await asyncio.Event().wait()
            status, body = (b"200 OK", WELL) if self.mood == "leads" else (b"503 No", STANDING_BY)
            if self.mood == "leads" and "orders" in path:
                body = TaskOrders(version="new").model_dump_json().encode()
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))
            await writer.drain()


@asynccontextmanager
async def linked(*moods):
    """Return a client of services in these states; `gone`: it no longer listens."""
    services, servers, urls = [OneService(mood) for mood in moods], [], []
    for service in services:
        server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        servers.append(server)
        if service.mood == "gone":
            server.close()
    link = AgentClient(urls, "token")
    try:
        yield link, services
    finally:
        await link.close()
        for server in servers:
            server.close()


@pytest.mark.parametrize("first", ["gone", "stands by", "silent"])
async def test_the_next_one_is_asked_and_then_stayed_with(first):
    async with linked(first, "leads") as (link, (_, second)):
        await link.report(TaskReport(ready=True))
        await link.report(TaskReport(ready=True))
        assert second.asked == ["/api/tasks/report"] * 2


async def test_a_machine_that_is_off_costs_less_silence_than_counts_as_lost():
    most_s = float(MiniclusterHub.heartbeat_timeout_s.default_value)
    async with linked("leads", "leads") as (link, _):
        assert all(service.timeout.connect <= most_s / 3 for service in link._services)


async def test_orders_that_are_held_are_asked_of_the_next_one_too():
    """Their time limit is long: if another request finds the service away, they do not wait for it."""
    async with linked("silent", "leads") as (link, (first, second)):
        held = asyncio.create_task(link.orders("old"))
        while not first.asked:
            await asyncio.sleep(0.01)
        await link.report(TaskReport(ready=True))
        assert (await held).version == "new"
        assert "/api/tasks/orders" in second.asked


async def test_it_comes_back_to_the_first_one():
    async with linked("leads", "stands by") as (link, (first, second)):
        await link.report(TaskReport(ready=True))
        first.mood, second.mood = "stands by", "leads"
        await link.report(TaskReport(ready=True))
        first.mood, second.mood = "leads", "stands by"
        await link.report(TaskReport(ready=True))
        assert len(first.asked) == 3


async def test_where_none_leads_each_is_asked_once():
    async with linked("stands by", "stands by", "gone") as (link, services):
        with pytest.raises(ServiceUnavailable):
            await link.report(TaskReport(ready=True))
        assert [len(service.asked) for service in services] == [1, 1, 0]
