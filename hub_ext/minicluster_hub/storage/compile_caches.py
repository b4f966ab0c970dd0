"""Compile caches: what torch.compile made for an owner's ranks, for the owner's next ranks.

A cache is code, which ranks load and execute, so nobody but its owner gets it. It is a row of pieces: each
task adds what it compiled and no task before it. What is over a limit goes, the oldest first: it is compiled
again. The service never opens a piece.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from minicluster.wire import BlobInfo
from minicluster.wire.files.compile_caches import CACHE_BYTES
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.quotas import Storage
from minicluster_hub.store import Store, StoreError
from minicluster_hub.store.storage.compile_caches import CacheKey

MOST_PIECES = 64
MOST_CACHES = 16
"""Of one owner: images and kinds of machines."""
UNUSED_S = 30 * 86_400.0
_EACH_S = 3600.0
_LEFT_S = 86_400.0
_REMEMBERED = 200

_Claims = dict[str, int]
"""By the digest of what is compiled: the task that sends it."""


@dataclass(frozen=True)
class CompileCaches:
    """files: the pieces. storage: counts them for quotas. claims: of the newest attempts and their keys."""

    store: Store
    files: BlobFiles
    storage: Storage
    clock: Callable[[], float]
    log: logging.Logger
    claims: OrderedDict[tuple[int, CacheKey], _Claims] = field(
        default_factory=OrderedDict[tuple[int, CacheKey], _Claims]
    )

    def use(self, key: CacheKey) -> list[BlobInfo]:
        """Return the pieces of a cache for a task that loads them."""
        return self.store.compile_caches.use(key, self.clock())

    def claim(self, key: CacheKey, attempt: int, task_id: int, entries: Iterable[str]) -> tuple[str, ...]:
        """Return what of these a task shall send: what no other task of its attempt sends."""
        claims = self.claims.setdefault((attempt, key), {})
        self.claims.move_to_end((attempt, key))
        while len(self.claims) > _REMEMBERED:
            self.claims.popitem(last=False)
        return tuple(entry for entry in entries if claims.setdefault(entry, task_id) == task_id)

    def add(self, key: CacheKey, piece: BlobInfo) -> None:
        """Make an uploaded file a cache's newest piece; drop what is then over the limits."""
        rows = self.store.compile_caches
        rows.add(key, piece, self.clock())
        self._remove(key.owner, rows.remove(key, surplus(rows.pieces(key))))
        for other in rows.least_used(key.owner, MOST_CACHES):
            self._remove(key.owner, rows.drop(other))

    def remove(self, key: CacheKey, pieces: Collection[str]) -> None:
        """Remove pieces that a task could not read."""
        if pieces:
            self._remove(key.owner, self.store.compile_caches.remove(key, pieces))
            self.log.warning(
                "%s damaged pieces of a compile cache of %s were removed", len(pieces), key.owner
            )

    def make_room(self, owner: str) -> bool:
        """Remove the caches of an owner whose quota is full; return whether there were any."""
        keys = self.store.compile_caches.least_used(owner)
        for key in keys:
            self._remove(owner, self.store.compile_caches.drop(key))
        return bool(keys)

    async def run(self) -> NoReturn:
        """Remove what nobody uses until cancelled. For a service that leads."""
        while True:
            try:
                await self.remove_unused()
            except (StoreError, OSError) as error:
                self.log.warning("unused compile caches were not removed: %s", error)
            await asyncio.sleep(_EACH_S)

    async def remove_unused(self) -> None:
        """Remove the caches that nobody used for long, and files without a row."""
        for key in self.store.compile_caches.unused_since(self.clock() - UNUSED_S):
            self._remove(key.owner, self.store.compile_caches.drop(key))
        left = await asyncio.to_thread(self.files.older_than, _LEFT_S)
        self.files.remove_old(self.store.compile_caches.unknown(left), _LEFT_S)

    def _remove(self, owner: str, files: Iterable[str]) -> None:
        for sha256 in files:
            # An upload of the same piece writes its row at its end.
            if not self.storage.is_coming(sha256):
                self.files.remove(sha256)
        self.storage.forget(owner)


def surplus(pieces: Collection[BlobInfo], most_bytes: int = CACHE_BYTES) -> list[str]:
    """Return the pieces that are over a cache's limits. pieces: the oldest first."""
    kept_bytes, over = 0, list[str]()
    for number, piece in enumerate(reversed(list(pieces))):
        kept_bytes += piece.size_bytes
        if number >= MOST_PIECES or kept_bytes > most_bytes:
            over.append(piece.sha256)
    return over
