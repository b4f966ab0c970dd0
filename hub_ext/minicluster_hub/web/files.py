"""Sending files in pieces, so that a large one costs no memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler

PIECE_BYTES = 256 * 1024


class FileReply(RequestHandler):
    """Mixin of handlers that answer with bytes from disk."""

    def offer_as(self, name: str) -> None:
        """Have a browser save the answer under this name (of our own making)."""
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')

    async def send_range(self, read: Callable[[int, int], bytes], start: int, end: int) -> None:
        """Send the bytes from `start` to `end` of what `read(offset, count)` gives."""
        self.set_header("Content-Length", str(end - start))
        try:
            while start < end:
                piece = read(start, min(PIECE_BYTES, end - start))
                if not piece:
                    raise OSError(f"a file ends {end - start} bytes early")
                self.write(piece)
                await self.flush()
                start += len(piece)
        except StreamClosedError:
            return
        self.finish()

    async def send_file(self, path: Path) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            await self.send_range(lambda _at, count: file.read(count), 0, size)
