"""The hub's HTTP client drops a connection whose other machine died without closing it."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import ClientSession

from minicluster_hub.hub import dns_client


async def test_an_answer_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_client, "_ANSWER_LIMIT_S", 0.2)

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    ended = asyncio.Event()
    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        asyncio.timeout(30),
        ClientSession(**dns_client.client_options()["session_options"]) as session,
    ):
        with pytest.raises(TimeoutError):
            await session.get(f"http://127.0.0.1:{port}/api/routes")
    ended.set()
    server.close()
