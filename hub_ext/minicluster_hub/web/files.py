"""Sending files in pieces, so that a large one costs no memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler

from minicluster_hub.web.errors import ApiError

PIECE_BYTES = 256 * 1024

_RANGE = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")


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


# Files as downloads that can be resumed: RFC 9110's ranges, with the SHA-256 as the entity's tag.


class RangeReply(FileReply):
    """Mixin of handlers that send files as attachments: no browser ever shows one in the hub's origin."""

    async def send_download(self, path: Path, sha256: str, size_bytes: int, name: str) -> None:
        """Send a file, or the part of it that was asked for."""
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("Content-Disposition", disposition(name))
        self.set_header("Accept-Ranges", "bytes")
        self.set_header("ETag", f'"{sha256}"')
        start, end = self._asked(f'"{sha256}"', size_bytes)
        with path.open("rb") as file:
            file.seek(start)
            await self.send_range(lambda _at, count: file.read(count), start, end)

    def _asked(self, tag: str, size_bytes: int) -> tuple[int, int]:
        headers = self.request.headers
        fresh = headers.get("If-Range", tag) == tag
        part = wanted(headers.get("Range", "") if fresh else "", size_bytes)
        if part is None:
            return 0, size_bytes
        start, end = part
        if start >= end:
            raise ApiError(416, "range", f"the file has {size_bytes} bytes, none of those asked for")
        self.set_status(206)
        self.set_header("Content-Range", f"bytes {start}-{end - 1}/{size_bytes}")
        return part


def wanted(header: str, size_bytes: int) -> tuple[int, int] | None:
    """Return the start and the end of the one range asked for; None: the whole file.

    What is not understood, several ranges too, asks for the whole file. An empty range is one that
    the file does not have.
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None or match[1] is match[2] is None:
        return None
    if match[1] is None:
        return max(0, size_bytes - int(match[2])), size_bytes
    start = int(match[1])
    end = size_bytes if match[2] is None else min(size_bytes, int(match[2]) + 1)
    if match[2] is not None and int(match[2]) < start:
        return None
    return start, end


def disposition(name: str) -> str:
    """Return the header that has a browser save a file under a name of any characters (RFC 6266)."""
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
