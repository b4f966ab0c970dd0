"""How a probe's report gets to doctor: printed here, and sent to the probe whose log doctor surely gets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from minicluster_hub.cluster.doctor.messages import REPORT_PREFIX

_REPORT_BYTES = 1 << 20
_PATIENCE_S = 3.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def start_server(serve: Serve, port: int) -> asyncio.Server:
    """Listen on all addresses: those who ask are other machines."""
    return await asyncio.start_server(serve, "0.0.0.0", port, limit=_REPORT_BYTES)  # noqa: S104


async def take_report(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Print the report of another node, as if it were this one's."""
    line = await asyncio.wait_for(reader.readline(), _PATIENCE_S)
    print_report(line.decode(errors="replace").rstrip())
    writer.write(b"ok\n")


def print_report(document: str) -> None:
    print(REPORT_PREFIX + document, flush=True)  # noqa: T201


async def send_report(address: str, port: int, token: str, document: str) -> None:
    """Have another probe print this one's report. It does nothing where that probe does not answer."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                writer.write(f"{token} report\n{document}\n".encode())
                await reader.readline()
            finally:
                writer.transport.abort()
