"""Clients that ask over HTTP as fast as they get answers, each on a connection of its own that stays open."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from urllib.parse import urlsplit

_PAUSE_S = 0.01
"""After a broken connection: a server that is gone must not keep its clients busy."""


@dataclass
class Crowd:
    """What clients saw. times_s: of each answer with status 200. refused: other statuses and broken
    connections.
    """

    times_s: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def per_s(self) -> float:
        return len(self.times_s) / self.seconds

    def percentile(self, share: float) -> float:
        """Return the time within which this share of the answers came. Ends the program if none did."""
        if not self.times_s:
            raise SystemExit(f"nobody got an answer, but {Counter(self.refused).most_common(3)}")
        ordered = sorted(self.times_s)
        return ordered[max(0, ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Question:
    """A POST that is sent again and again."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        url = urlsplit(self.url)
        lines = [
            f"POST {url.path} HTTP/1.1",
            f"Host: {url.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(self.body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


async def ask_all(
    question: Question, clients: int, seconds: float, over: asyncio.Event | None = None
) -> Crowd:
    """Have clients ask for some time, or until `over`."""
    crowd, began = Crowd(), time.perf_counter()
    until = began + seconds
    await asyncio.gather(*(_client(question, until, crowd, over) for _ in range(clients)))
    crowd.seconds = time.perf_counter() - began
    return crowd


async def _client(question: Question, until: float, crowd: Crowd, over: asyncio.Event | None) -> None:
    url, request = urlsplit(question.url), question.to_bytes()
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while time.perf_counter() < until and not (over is not None and over.is_set()):
        began = time.perf_counter()
        try:
            if streams is None:
                streams = await asyncio.open_connection(url.hostname, url.port)
            status, stays = await _ask(streams, request)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            crowd.refused.append(type(error).__name__)
            if streams is not None:
                streams[1].close()
            streams = None
            await asyncio.sleep(_PAUSE_S)
            continue
        if status == 200:
            crowd.times_s.append(time.perf_counter() - began)
        else:
            crowd.refused.append(str(status))
        if not stays:
            streams[1].close()
            streams = None
    if streams is not None:
        streams[1].close()


async def _ask(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes
) -> tuple[int, bool]:
    """Return the status of the answer, and whether the connection stays."""
    reader, writer = streams
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    size = 0
    for line in head.split("\r\n"):
        if line.startswith("content-length:"):
            size = int(line.partition(":")[2])
    await reader.readexactly(size)
    if "transfer-encoding: chunked" in head:
        await _read_chunks(reader)
    return int(head.split(" ", 2)[1]), "connection: close" not in head


async def _read_chunks(reader: asyncio.StreamReader) -> None:
    """Read an answer whose length comes piece by piece; nobody sends trailers here."""
    size = -1
    while size:
        size = int((await reader.readline()).partition(b";")[0], 16)
        await reader.readexactly(size + len(b"\r\n"))
