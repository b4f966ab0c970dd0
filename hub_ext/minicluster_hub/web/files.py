"""Stored files as answers. tornado sends them: in pieces, and with ranges, so that a download can go on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from tornado.web import RequestHandler, StaticFileHandler

from minicluster_hub.web.errors import ApiError

if TYPE_CHECKING:  # its `get` has other arguments than those of handlers
    _Files = RequestHandler
else:
    _Files = StaticFileHandler


class FileReply(_Files):
    """Mixin of handlers that send files by their SHA-256, which is the file's name and the entity's tag."""

    _sha256 = ""

    def offer_as(self, name: str) -> None:
        """Have a browser save the answer under a name of any characters (RFC 6266), and never show it."""
        plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)
        value = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
        self.set_header("Content-Disposition", value)

    async def send_file(self, path: Path) -> None:
        """Send a file, or the part of it that was asked for. Raises ApiError (416)."""
        self._sha256, self.root = path.name, str(path.parent)
        # tornado does not look at this header: a part of another file than the client has is of no use.
        if self.request.headers.get("If-Range", self.compute_etag()) != self.compute_etag():
            self.request.headers.pop("Range", None)
        files = cast(StaticFileHandler, self)
        await StaticFileHandler.get(files, path.name)
        if self.get_status() == 416:
            message = f"the file has {files.get_content_size()} bytes, none of those asked for"
            raise ApiError(416, "range", message)

    def compute_etag(self) -> str | None:
        return f'"{self._sha256}"' if self._sha256 else None

    def get_content_type(self) -> str:
        return "application/octet-stream"

    def get_cache_time(self, *_file: Any) -> int:
        return 0
