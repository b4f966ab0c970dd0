"""Connections to the job service: no user can close those that the proxy shares, or use up all.

The proxy reaches it by a few, for all users. A container reaches its agents' port by as many as it likes.
"""

import asyncio
import hashlib
import resource
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from minicluster_hub.listeners import ListenerOptions

from ...patience import WITHIN_S, eventually
from ...service.api.client import PREFIX
from ..machines.test_agents_port import files, leader_election, serving

__all__ = ["files", "leader_election"]

REQUESTS = [
    ("GET", "health", 0),
    ("GET", "nodes", 0),
    ("GET", "nowhere", 0),
    ("POST", "nowhere", 9),
    ("POST", "api/jobs", 9),
    ("PUT", "nodes", 9),
    ("PROPFIND", "nodes", 0),
    ("GET", "jobs/" + "9" * 20, 0),
]


@pytest.mark.parametrize(("method", "path", "length"), REQUESTS)
async def test_a_connection_that_the_service_ends_was_told_to_end(api, method, path, length):
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(api.url).port)
    head = f"{method} {PREFIX}{path} HTTP/1.1\r\nHost: hub\r\nContent-Length: {length}\r\n\r\n"
    for _ in range(2):
        writer.write(head.encode() + b"x" * length)
        found = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(found.split("content-length:")[1].split("\r")[0])
        await reader.readexactly(size)
        if "connection: close" in found:
            assert await reader.read() == b""
            break
    writer.close()


# --- silent connections ---------------------------------------------------------------------------


@asynccontextmanager
async def connected(url, ssl=None):
    """Connect without sending anything beyond TLS."""
    there = urlsplit(url)
    reader, writer = await asyncio.open_connection(there.hostname, there.port, ssl=ssl)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ended(reader):
    """Wait until the service closes a connection; return the bytes received before."""
    async with asyncio.timeout(WITHIN_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


def head_of(client, path, size_bytes, method="PUT"):
    """Return the head of a request of this client."""
    head = "".join(
        f"{name}: {client.headers[name]}\r\n"
        for name in ("Authorization", "Minicluster-Wire")
        if name in client.headers
    )
    length = f"Content-Length: {size_bytes}\r\n"
    return f"{method} {PREFIX}{path} HTTP/1.1\r\nHost: hub\r\n{head}{length}\r\n".encode()


async def is_well(reader, writer):
    """Send a request on an open connection, and check the answer."""
    writer.write(f"GET {PREFIX}health HTTP/1.1\r\nHost: hub\r\n\r\n".encode())
    async with asyncio.timeout(WITHIN_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.split("content-length:")[1].split("\r")[0]))
    return " 200 " in head


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: "], ids=["nothing", "half"])
async def test_a_connection_that_asks_nothing_is_ended(start_api, begun):
    async with start_api(idle_s=0.3) as api, connected(api.url) as (reader, writer):
        writer.write(begun)
        assert await ended(reader) == b""


async def test_so_is_one_that_asks_nothing_more(start_api):
    async with start_api(idle_s=0.3) as api, connected(api.url) as (reader, writer):
        assert await is_well(reader, writer)
        assert await ended(reader) == b""


async def test_and_one_without_a_word_of_tls(start_api, files, leader_election):
    async with (
        start_api(idle_s=0.3) as api,
        serving(api, files, leader_election) as ports,
        connected(ports.agents) as (reader, _),
    ):
        assert await ended(reader) == b""


async def test_polls_and_streams_are_held_for_longer(start_api, listen):
    limits = {"idle_s": 0.5, "body_stalled_s": 0.5, "orders_hold_s": 2.0, "keep_alive_s": 0.5}
    async with start_api(**limits) as api:
        job, (agent,), _ = await api.running()
        have = (await agent.orders()).version
        assert (await agent.orders(have)).version == have
        async with listen(api.client("ada-token"), f"api/jobs/{job.id}/events") as events:
            async with asyncio.timeout(WITHIN_S):
                while events.keep_alives < 4:
                    events.keep_alives += (await anext(events.lines)).startswith(":")


# --- bodies that never arrive ---------------------------------------------------------------------


BODIES = ["api/blobs", "api/tasks/snapshots", "api/jobs", "nowhere"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
async def test_a_request_whose_body_does_not_come_is_ended(start_api, path, known):
    async with start_api(body_stalled_s=0.3) as api:
        _, (agent,), _ = await api.running()
        client = agent.http if "tasks" in path else api.client("ada-token" if known else None)
        path = path if path in ("api/jobs", "nowhere") else f"{path}/{'a' * 64}"
        async with connected(api.url) as (reader, writer):
            writer.write(head_of(client, path, 10_000, "POST" if path == "api/jobs" else "PUT") + b"x" * 10)
            assert await ended(reader) == b""
        storage = api.context.storage
        await eventually(lambda: not storage.unwritten_bytes and not storage.coming_bytes("ada"))


async def test_a_slow_one_may_take_its_time(start_api):
    """There is no fixed time limit, since a snapshot of 64 GB takes long."""
    data = b"x" * 12
    async with start_api(body_stalled_s=2.0) as api, connected(api.url) as (reader, writer):
        path = f"api/blobs/{hashlib.sha256(data).hexdigest()}"
        writer.write(head_of(api.client("ada-token"), path, len(data)))
        for _ in data:
            await asyncio.sleep(0.25)
            writer.write(b"x")
        assert (await reader.readline()).split()[1] == b"200"


@pytest.mark.parametrize("path", ["api/blobs", "api/data/pieces", "api/tasks/files", "api/tasks/blobs"])
async def test_only_so_many_uploads_of_one_are_under_way(start_api, path):
    async with start_api(uploads=3) as api:
        _, (agent,), _ = await api.running()
        client = agent.http if "tasks" in path else api.client("ada-token")
        storage, url = api.context.storage, f"{path}/{hashlib.sha256(b'mine').hexdigest()}"
        writers = []
        for number in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(api.url).port)
            writer.write(head_of(client, f"{path}/{number:064}", 10_000))
            writers.append(writer)
        await eventually(lambda: storage.coming_bytes("ada") == 3 * 10_000)
        answer = await client.put(url, content=b"mine")
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_streams")
        bobs = await api.ask("PUT", f"api/blobs/{url[-64:]}", "bob-token", content=b"mine")
        assert bobs.status_code == 200
        writers.pop().close()
        await eventually(lambda: storage.coming_bytes("ada") == 2 * 10_000)
        for _ in range(4):  # Ended and damaged snapshots do not count.
            assert (await client.put(url, content=b"mine")).status_code == 200
            assert (await client.put(f"{path}/{'b' * 64}", content=b"mine")).status_code == 422
        for writer in writers:
            writer.close()


# --- connections from one address -----------------------------------------------------------------


async def test_who_holds_many_connections_ends_their_own(start_api, files, leader_election):
    async with (
        start_api(connections=5) as api,
        serving(api, files, leader_election) as ports,
        connected(ports.agents, ports.trust) as mine,
    ):
        assert await is_well(*mine)
        port = urlsplit(ports.agents).port
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for first, _ in silent[:16]:
            assert await ended(first) == b""
        async with connected(ports.agents, ports.trust) as newest:
            assert await is_well(*newest)
            assert await is_well(*mine)
        assert not any(last.at_eof() for last, _ in silent[17:])
        for _, one in silent:
            one.close()


async def test_of_those_that_ask_the_one_that_asked_first_makes_room(start_api, files, leader_election):
    async with start_api(connections=3) as api, serving(api, files, leader_election) as ports:
        there = urlsplit(ports.agents)
        opened = []
        for _ in range(4):
            opened.append(await asyncio.open_connection(there.hostname, there.port, ssl=ports.trust))
            assert await is_well(*opened[-1])
            if len(opened) == 3:
                assert await is_well(*opened[0])
        assert await ended(opened.pop(1)[0]) == b""
        for one in opened:
            assert await is_well(*one)
            one[1].close()


async def test_connections_that_are_over_count_no_more(start_api, files, leader_election):
    async with (
        start_api(connections=3) as api,
        serving(api, files, leader_election) as ports,
        connected(ports.agents, ports.trust) as oldest,
    ):
        assert await is_well(*oldest)
        for _ in range(5):
            async with connected(ports.agents, ports.trust) as one:
                assert await is_well(*one)
        assert await is_well(*oldest)


async def test_another_job_service_may_have_more(start_api, files, leader_election):
    """It has one connection for each user's connection: event streams alone are very many."""
    async with start_api(connections=2) as api, serving(api, files, leader_election) as ports:
        there, opened = urlsplit(ports.agents), []
        for _ in range(6):
            opened.append(await asyncio.open_connection(there.hostname, there.port, ssl=ports.tls.client()))
            assert await is_well(*opened[-1])
        for one in opened:
            assert await is_well(*one)
            one[1].close()


def test_the_service_may_open_as_many_files_as_the_machine_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
        for listener in ListenerOptions(bind_url="http://127.0.0.1:0").bind().users:
            listener.close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
