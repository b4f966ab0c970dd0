"""Measures the rate between two probes, and the difference of their clocks.

Every probe serves and measures. A request is a line: the token, then hello, clock, send, receive or
report. A probe does one transfer at a time, and answers "busy" meanwhile: two transfers would halve each
other's rates.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from minicluster_hub.cluster.doctor.messages import Peer
from minicluster_hub.cluster.doctor.reports import start_server, take_report

TRANSFER_S, _WARM_UP_S = 0.4, 0.1
_RING_REACH = 3
_PIECE = bytes(256 * 1024)
_BUSY_PAUSE_S, _ARRIVAL_PAUSE_S, _PORT_PATIENCE_S, _LINE_PATIENCE_S = 0.1, 0.2, 4.0, 3.0
_CLOCK_ROUNDS = 5


class Unmeasured(Exception):
    """A peer did not answer the meter; the message says why."""


class LinkMeter:
    """One probe's end of all measurements. It listens on all addresses: its peers are other machines."""

    def __init__(self, token: str, port: int) -> None:
        self._token, self._port = token, port
        self._one_at_a_time = asyncio.Lock()
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        """Listen; return the port. A probe of an earlier run may still use it for a moment."""
        deadline = time.monotonic() + _PORT_PATIENCE_S
        while True:
            try:
                self._server = await start_server(self._serve, self._port)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_ARRIVAL_PAUSE_S)
            else:
                return self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def wait_for(self, peer: Peer, timeout_s: float) -> None:
        """Wait until a peer's probe answers: containers start at different moments. Raises Unmeasured."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), 0.5)):
                    async with self._ask(peer, "hello") as (reader, _):
                        if await reader.readline():
                            return
                words = "another run of doctor is under way"
            except TimeoutError:
                words = f"no answer at port {self._port}/tcp"
            except OSError as error:
                words = f"{error_text(error)} at port {self._port}/tcp"
            if time.monotonic() + _ARRIVAL_PAUSE_S > deadline:
                raise Unmeasured(words)
            await asyncio.sleep(_ARRIVAL_PAUSE_S)

    async def clock_ahead_s(self, peer: Peer) -> float:
        """Return how many seconds the peer's clock is ahead of ours, from the quickest of a few requests."""
        best_round_s, ahead_s = float("inf"), 0.0
        async with self._ask(peer, "clock") as (reader, writer):
            for _ in range(_CLOCK_ROUNDS):
                asked, start = time.time(), time.monotonic()
                writer.write(b"?\n")
                line = await asyncio.wait_for(reader.readline(), _LINE_PATIENCE_S)
                round_s = time.monotonic() - start
                if round_s < best_round_s and line:
                    best_round_s, ahead_s = round_s, float(line) - (asked + round_s / 2)
        return ahead_s

    async def transfer_mbit(self, peer: Peer, verb: str, timeout_s: float) -> float:
        """Measure one direction ("send": the peer sends); waits while either end is in another transfer."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            async with self._one_at_a_time:
                rate = await self._try_transfer(peer, verb)
            if rate is not None:
                return rate
            await asyncio.sleep(_BUSY_PAUSE_S * (0.5 + random.random()))
        raise Unmeasured("it was busy with other measurements")

    async def _try_transfer(self, peer: Peer, verb: str) -> float | None:
        async with self._ask(peer, verb) as (reader, writer):
            if await asyncio.wait_for(reader.readline(), _LINE_PATIENCE_S) != b"ok\n":
                return None
            if verb == "send":
                return await asyncio.wait_for(_count(reader), TRANSFER_S + _LINE_PATIENCE_S)
            await _pour(writer)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.readline(), _LINE_PATIENCE_S)
            return float(answer) if answer else None

    @asynccontextmanager
    async def _ask(
        self, peer: Peer, verb: str
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(peer.address, self._port, limit=len(_PIECE))
        try:
            writer.write(f"{self._token} {verb}\n".encode())
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError):
            line = await asyncio.wait_for(reader.readline(), _LINE_PATIENCE_S)
            token, _, verb = line.decode(errors="replace").strip().partition(" ")
            if token == self._token:
                await self._answer(verb, reader, writer)
        writer.close()

    async def _answer(self, verb: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if verb == "hello":
            writer.write(b"hello\n")
        elif verb == "report":
            await take_report(reader, writer)
        elif verb == "clock":
            while await reader.readline():
                writer.write(f"{time.time()}\n".encode())
        elif self._one_at_a_time.locked():
            writer.write(b"busy\n")
        else:
            async with self._one_at_a_time:
                writer.write(b"ok\n")
                if verb == "send":
                    await _pour(writer)
                else:
                    writer.write(f"{await _count(reader)}\n".encode())


def partners(node_ids: Sequence[str], own: str) -> set[str]:
    """Return the peers that this node measures: each pair once, and only the nearest six on a ring."""
    ring = sorted(node_ids)
    size, at = len(ring), ring.index(own)
    found = set()
    for ahead in range(1, min(_RING_REACH, size // 2) + 1):
        peer = (at + ahead) % size
        if 2 * ahead < size or at < peer:
            found.add(ring[peer])
    return found


def error_text(error: OSError) -> str:
    """Return the system's message: asyncio's message only repeats the address."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


async def _pour(writer: asyncio.StreamWriter) -> None:
    end = time.monotonic() + TRANSFER_S
    while time.monotonic() < end:
        writer.write(_PIECE)
        await writer.drain()


async def _count(reader: asyncio.StreamReader) -> float:
    """Return the rate in Mbit/s after the first moments, in which TCP speeds up."""
    start = time.monotonic()
    counted_from, last, counted = start, start, 0
    while piece := await reader.read(len(_PIECE)):
        last = time.monotonic()
        if last - start < _WARM_UP_S:
            counted_from = last
        else:
            counted += len(piece)
        if last - start > TRANSFER_S + 1:
            break
    return counted * 8 / 1e6 / max(last - counted_from, 1e-3)
