"""Fetches one data set, or its missing and damaged pieces, into a node's cache; reports progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path

from minicluster.runtime.agent.client import Backoff, ServiceRefused, ServiceUnavailable
from minicluster.runtime.node.cache import Cache, NoRoom
from minicluster.runtime.node.client import DataAgentClient
from minicluster.runtime.node.piece_connection import PieceConnection, piece_connection
from minicluster.runtime.node.stream import DataTree
from minicluster.wire import DataManifest, DataOrder, DataSetState, DataSetStatus

log = logging.getLogger("minicluster.data_agent")
AT_ONCE = 4
"""Concurrent transfers: enough for a fast link, and at most 64 MB of memory."""
_ROOM_AGAIN_S = 2.0


class DataWork:
    """One data set. `order`: from the newest attempt that wants it; the data is checked for each attempt."""

    def __init__(
        self,
        order: DataOrder,
        cache: Cache,
        client: DataAgentClient,
        in_use: Callable[[], Collection[str]],
        changed: Callable[[], None],
    ) -> None:
        self.order = order
        self.standing = DataSetStatus(folder=order.folder, standing=DataSetState.FETCHING)
        self._cache = cache
        self._client = client
        self._in_use = in_use
        self._changed = changed

    async def run(self) -> None:
        """Fetch the ordered data set, or report why this failed."""
        backoff = Backoff()
        while True:
            try:
                await self._bring()
                return self._report(DataSetState.READY, attempt=self.order.attempt)
            except ServiceUnavailable:
                await backoff.wait()
            except NoRoom as error:
                if not error.passing:
                    return self._fail(error.message, error.hint)
                self._report(DataSetState.FETCHING, detail=error.message)
                await asyncio.sleep(_ROOM_AGAIN_S)
            except ServiceRefused as error:
                return self._fail(error.message, "Push the data set again: only what is missing is sent.")
            except OSError as error:
                reason = f"the node's disk did not take it ({error.strerror})"
                return self._fail(reason, "An admin's `doctor` tells how full it is.")
            except Exception:
                log.exception("the data set %s was not brought", self.order.name)
                return self._fail("the node's data set agent failed", "Its log tells an admin more.")

    def _report(self, standing: DataSetState, **more: object) -> None:
        update = {"standing": standing, "detail": "", "hint": "", **more}
        self.standing = self.standing.model_copy(update=update)
        self._changed()

    def _fail(self, detail: str, hint: str) -> None:
        self._report(DataSetState.FAILED, detail=detail, hint=hint, attempt=self.order.attempt)

    async def _bring(self) -> None:
        order, cache = self.order, self._cache
        await asyncio.to_thread(cache.make_room, order, self._in_use())
        manifest = await self._manifest()
        tree = DataTree(cache.folder(order.folder), manifest)
        touched = await asyncio.to_thread(cache.touched, order, tree)
        if touched == []:
            cache.touch(order.folder)
            return
        if touched is None:
            root, fresh = await asyncio.to_thread(self._begin)
            tree = DataTree(root, manifest, fresh=fresh)
            doubted: Collection[int] = range(len(manifest.pieces))
        else:
            doubted = tree.touching(touched)
        await asyncio.to_thread(tree.open)
        await self._mend(tree, manifest, doubted)
        await asyncio.to_thread(tree.seal)
        await asyncio.to_thread(lambda: cache.complete(order, tree.stats()))

    async def _manifest(self) -> DataManifest:
        known = await asyncio.to_thread(self._cache.manifest, self.order)
        if known is not None:
            return known
        data = await self._client.manifest(self.order.manifest_sha256)
        return await asyncio.to_thread(self._cache.keep_manifest, self.order, data)

    def _begin(self) -> tuple[Path, bool]:
        """Return the folder to fetch into, and whether it is new. A complete data set is repaired there."""
        part, folder = self._cache.part(self.order.folder), self._cache.folder(self.order.folder)
        if folder.is_dir():
            return folder, False
        fresh = not part.is_dir()
        part.mkdir(exist_ok=True)
        return part, fresh

    async def _mend(self, tree: DataTree, manifest: DataManifest, doubted: Collection[int]) -> None:
        """Check these pieces on disk; fetch those that are missing or damaged."""
        doubted_bytes = [manifest.pieces[number].size_bytes for number in doubted]
        self._report(DataSetState.FETCHING, done_bytes=manifest.size_bytes - sum(doubted_bytes))
        waiting = list(doubted)[::-1]

        async def fetch() -> None:
            with piece_connection(max(doubted_bytes)) as connection:
                while waiting:
                    await self._mend_piece(tree, waiting.pop(), manifest, connection)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(AT_ONCE, len(waiting))):
                    group.create_task(fetch())
        except ExceptionGroup as trouble:
            raise trouble.exceptions[0] from None

    async def _mend_piece(
        self, tree: DataTree, number: int, manifest: DataManifest, connection: PieceConnection
    ) -> None:
        piece = manifest.pieces[number]
        if not await asyncio.to_thread(tree.is_sound, number):
            data = await self._client.piece(piece.sha256, connection)
            await asyncio.to_thread(tree.write, number, data)
        self._report(DataSetState.FETCHING, done_bytes=self.standing.done_bytes + piece.size_bytes)
