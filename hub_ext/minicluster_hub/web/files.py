"""Sends stored files with tornado's StaticFileHandler: in chunks, and by ranges, so downloads can resume."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from tornado.web import RequestHandler, StaticFileHandler

from minicluster_hub.web.errors import ApiError

if TYPE_CHECKING:  # the arguments of its `get` differ from those of our handlers
    _Files = RequestHandler
else:
    _Files = StaticFileHandler

_CHUNK_BYTES = 1 << 20


class FileReply(_Files):
    """Mixin of handlers that send files. A file's SHA-256 is its name on disk and its ETag."""

    _sha256 = ""

    def offer_as(self, name: str) -> None:
        """Make browsers save the answer under a name (RFC 6266: any characters) and never display it."""
        plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)
        value = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
        self.set_header("Content-Disposition", value)

    async def send_file(self, path: Path) -> None:
        """Send a file, or the requested part of it. Raises ApiError (416)."""
        self._sha256, self.root = path.name, str(path.parent)
        # tornado ignores this header: the client would append a part of another file to its own.
        if self.request.headers.get("If-Range", self.compute_etag()) != self.compute_etag():
            self.request.headers.pop("Range", None)
        files = cast(StaticFileHandler, self)
        await StaticFileHandler.get(files, path.name)
        if self.get_status() == 416:
            message = f"the file has {files.get_content_size()} bytes; the requested range is beyond"
            raise ApiError(416, "range", message)

    @classmethod
    def get_content(cls, abspath: str, start: int | None = None, end: int | None = None) -> Iterator[bytes]:
        """Yield the file in larger chunks than tornado's, which cost more than the bytes."""
        with open(abspath, "rb", buffering=0) as file:  # noqa: PTH123 - a path as text
            file.seek(start or 0)
            left = (os.fstat(file.fileno()).st_size if end is None else end) - file.tell()
            while left > 0 and (chunk := file.read(min(_CHUNK_BYTES, left))):
                left -= len(chunk)
                yield chunk

    def compute_etag(self) -> str | None:
        return f'"{self._sha256}"' if self._sha256 else None

    def get_content_type(self) -> str:
        return "application/octet-stream"

    def get_cache_time(self, *_file: Any) -> int:
        return 0
