"""An HTTP service for tests with scripted answers, cuts, closes and hangs."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from ...patience import eventually


def answer(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Service:
    """Sends each request the next answer. `hangs`, `closes`: answers (from 0) after which it does so."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.hangs: set[int] = set()
        self.closes: set[int] = set()
        self.requests: list[str] = []
        self.opened = self.ended = 0
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        await eventually(lambda: self.opened == self.ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        with suppress(OSError, asyncio.IncompleteReadError):
            while await self._serve_one(reader, writer):
                pass
        self.ended += 1
        writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        number = len(self.requests)
        self.requests.append(request)
        writer.write(self.answers[number])
        await writer.drain()
        if number in self.hangs:
            assert await reader.read() == b""
        return number not in self.closes
