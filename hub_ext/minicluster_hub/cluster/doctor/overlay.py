"""Tests whether containers on different nodes reach each other: only this tests the Swarm's UDP ports."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from minicluster_hub.cluster.doctor.messages import OverlayReport, ProbeTask, Target

_PATIENCE_S, _PAUSE_S, _CONNECT_S = 6.0, 0.3, 1.0


async def overlay_report(task: ProbeTask, node_id: str) -> OverlayReport:
    """Exchange node ids with every other node's container, until all have answered or time is over."""
    server = await asyncio.start_server(_hello(task.token, node_id), "0.0.0.0", task.port)  # noqa: S104
    wanted = {peer.id for peer in task.peers} - {node_id}
    reached: set[str] = set()
    deadline, error = time.monotonic() + _PATIENCE_S, ""
    while reached < wanted and time.monotonic() < deadline:
        try:
            addresses = await _addresses(task.overlay_name)
            error = ""
        except OSError:
            addresses, error = set(), f"the name tasks.{task.overlay_name} is not found"
        met = await asyncio.gather(*(_meet(address, task) for address in addresses))
        reached |= set(met) & wanted
        if reached < wanted:
            await asyncio.sleep(_PAUSE_S)
    found = await asyncio.gather(*(_opens(target) for target in task.closed))
    opened = tuple(target.what for target, opens in zip(task.closed, found, strict=True) if opens)
    del server  # It goes on answering: the event loop keeps it until this process ends.
    return OverlayReport(node_id=node_id, reached=tuple(sorted(reached)), open=opened, error=error)


async def _addresses(service: str) -> set[str]:
    found = await asyncio.get_running_loop().getaddrinfo(f"tasks.{service}", None, family=socket.AF_INET)
    return {str(entry[4][0]) for entry in found}


async def _opens(target: Target) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(target.host, int(target.port))
            writer.transport.abort()
            return True
    except (OSError, TimeoutError):
        return False


async def _meet(address: str, task: ProbeTask) -> str:
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(address, task.port)
            try:
                writer.write(f"{task.token}\n".encode())
                return (await reader.readline()).decode(errors="replace").strip()
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return ""


def _hello(
    token: str, node_id: str
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError):
            line = await asyncio.wait_for(reader.readline(), _CONNECT_S)
            if line.decode(errors="replace").strip() == token:
                writer.write(f"{node_id}\n".encode())
        writer.close()

    return serve
