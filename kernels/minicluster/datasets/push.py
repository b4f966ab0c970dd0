"""Pushes a folder to the cluster: reads and hashes it once, and sends only the missing pieces.

The cluster identifies pieces by hash. So an interrupted push, started again, continues where it stopped.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from minicluster.datasets import calls
from minicluster.datasets.folder import Folder, Piece, cut
from minicluster.wire import BlobInfo, DataManifest, DataSet

if TYPE_CHECKING:
    from minicluster.client.client import JobServiceClient

AT_ONCE = 4
"""Number of pieces read, and number sent, at a time: this takes at most 128 MB of memory."""


@dataclass(frozen=True)
class PushState:
    """The progress of a push: bytes on the cluster, and bytes of these that this push sent."""

    done_bytes: int = 0
    total_bytes: int = 0
    sent_bytes: int = 0
    sent_pieces: int = 0


class Push:
    """One push. tell: called with its progress, by several threads."""

    def __init__(self, folder: Folder, service: JobServiceClient, tell: Callable[[PushState], None]) -> None:
        self.so_far = PushState(total_bytes=folder.size_bytes)
        self._folder = folder
        self._service = service
        self._tell = tell
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def run(self, name: str, shared: bool | None) -> DataSet:
        """Push the folder and register it as a data set. Raises FolderUnusable, ServiceError."""
        with ThreadPoolExecutor(AT_ONCE, "hash") as hashing, ThreadPoolExecutor(AT_ONCE, "send") as sending:
            try:
                pieces = self._bring_all(hashing, sending)
            except BaseException:
                hashing.shutdown(wait=False, cancel_futures=True)
                sending.shutdown(wait=False, cancel_futures=True)
                raise
        manifest = DataManifest(files=self._folder.files, pieces=tuple(pieces)).model_dump_json().encode()
        info = BlobInfo(sha256=hashlib.sha256(manifest).hexdigest(), size_bytes=len(manifest))
        if calls.missing(self._service, [info]):
            calls.put_piece(self._service, info.sha256, manifest)
        return calls.keep(self._service, name, info.sha256, shared)

    def _bring_all(self, hashing: ThreadPoolExecutor, sending: ThreadPoolExecutor) -> list[BlobInfo]:
        """Read pieces while earlier ones are sent; return all pieces in order."""
        found: list[BlobInfo] = []
        sent: deque[Future[None]] = deque()
        waiting = cut(self._folder.files)
        next_ones = self._read_some(hashing, waiting, 1)  # one piece only, so that sending starts at once
        while next_ones:
            ready = [future.result() for future in next_ones]
            next_ones = self._read_some(hashing, waiting, AT_ONCE)
            found += [info for info, _ in ready]
            sent += self._send_missing(sending, ready)
            while len(sent) > (AT_ONCE if next_ones else 0):
                sent.popleft().result()
        return found

    def _read_some(
        self, hashing: ThreadPoolExecutor, waiting: Iterator[Piece], count: int
    ) -> list[Future[tuple[BlobInfo, bytes]]]:
        return [hashing.submit(self._read, piece) for piece in islice(waiting, count)]

    def _read(self, piece: Piece) -> tuple[BlobInfo, bytes]:
        data = self._folder.read(piece)
        return BlobInfo(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data)), data

    def _send_missing(
        self, sending: ThreadPoolExecutor, ready: list[tuple[BlobInfo, bytes]]
    ) -> list[Future[None]]:
        new = {info.sha256: (info, data) for info, data in ready if info.sha256 not in self._known}
        missing = {info.sha256 for info in calls.missing(self._service, [info for info, _ in new.values()])}
        self._known |= new.keys()
        # Count pieces that the cluster already has, and repeated pieces.
        there = sum(info.size_bytes for info, _ in ready) - sum(new[one][0].size_bytes for one in missing)
        if there:
            self._count(there, 0)
        return [sending.submit(self._send, *new[sha256]) for sha256 in new if sha256 in missing]

    def _send(self, info: BlobInfo, data: bytes) -> None:
        calls.put_piece(self._service, info.sha256, data)
        self._count(info.size_bytes, info.size_bytes)

    def _count(self, done_bytes: int, sent_bytes: int) -> None:
        with self._lock:
            now = self.so_far
            self.so_far = PushState(
                now.done_bytes + done_bytes,
                now.total_bytes,
                now.sent_bytes + sent_bytes,
                now.sent_pieces + bool(sent_bytes),
            )
        self._tell(self.so_far)
