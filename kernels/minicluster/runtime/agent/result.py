"""The result of a task's first rank, on its way to the service."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from minicluster.runtime.agent.client import AgentClient, with_retries
from minicluster.wire import BlobInfo
from minicluster.wire.sessions import INLINE_BYTES


class ResultUpload:
    """Brings a result to the service: a small one within a report, a larger one as a blob before it.

    info: what reports name; None: there is no result, or it is not there yet. data: the bytes for the next
    report. If the service refuses a report with them, `deliver` sends them as a blob, whose error says why.
    """

    def __init__(self, path: Path, client: AgentClient) -> None:
        self.info: BlobInfo | None = None
        self.data: bytes | None = None
        self._path = path
        self._client = client
        self._inline = True
        self._uploading: asyncio.Task[BlobInfo] | None = None

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def begin(self) -> None:
        """Begin to send a large one while its rank's process ends. If that fails, nobody may want it."""
        if self.exists and not self._small():
            self._uploading = asyncio.create_task(self._upload())
            self._uploading.add_done_callback(lambda upload: upload.cancelled() or upload.exception())

    async def deliver(self) -> None:
        """Bring the result to the service, or have it ready for the next report. Raises ServiceRefused."""
        if self._small():
            self.data = self._path.read_bytes()
            self.info = BlobInfo(sha256=hashlib.sha256(self.data).hexdigest(), size_bytes=len(self.data))
        else:
            self.info = await (self._uploading or self._upload())

    def taken(self) -> None:
        """The service has answered a report with the data."""
        self.data = None

    def refused(self) -> bool:
        """Return whether the refused report had the data: then `deliver` is to be called again."""
        if self.data is None:
            return False
        self.info = self.data = None
        self._inline = False
        return True

    def close(self) -> None:
        if self._uploading:
            self._uploading.cancel()

    def _small(self) -> bool:
        return self._inline and self._path.stat().st_size <= INLINE_BYTES

    async def _upload(self) -> BlobInfo:
        return await with_retries(lambda: self._client.upload(self._path))
