"""The agent's part in compile caches: it fetches the owner's when a cell compiles, and adds what is new.

A cell that never calls torch.compile costs nothing of it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from minicluster.runtime.agent.client import (
    AgentClient,
    BlobDamaged,
    ServiceRefused,
    ServiceUnavailable,
    TaskEnded,
    with_retries,
)
from minicluster.runtime.agent.files.compiled_files import (
    FOLDER,
    PieceDamaged,
    drop_unfinished,
    entries_of,
    files_of,
    pack,
    unpack,
)
from minicluster.wire import BlobInfo
from minicluster.wire.files.compile_caches import CACHE_BYTES, MOST_ENTRIES, CompiledEntries

LOAD_S = 20.0
"""A cell compiles without the cache if it takes longer to come."""
LOOK_S = 10.0
_LAST_S = 2.0
_REFUSED = (ServiceRefused, TaskEnded, OSError)

log = logging.getLogger(__name__)


class CompileCache:
    """What torch.compile made in a task, one attempt after the other: it stays as long as the task."""

    def __init__(self, scratch: Path, node: str, client: AgentClient, changed: Callable[[], None]) -> None:
        self._folder = scratch / FOLDER
        self._node = node
        self._client = client
        self._changed = changed
        self._environment = ""
        self._running: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._pieces: set[str] = set()
        self._damaged: list[str] = []
        self._known: frozenset[str] = frozenset()
        """Files that the cache has, or that shall not be sent."""
        self._notes: list[str] = []

    def begin(self) -> None:
        """Prepare for an attempt."""
        self._stop(self._running)
        self._running, self._notes = None, []

    def wanted(self, environment: str, answer: Path) -> None:
        """Fetch the cache, since a rank begins to compile, and then write the answer, which ranks wait for.

        environment: see wire.files.compile_caches.
        """
        if self._running is None:
            self._running = asyncio.create_task(self._run(environment, answer))

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    async def finish(self, *, sound: bool) -> None:
        """Send what is new. If that takes long, it goes on while the gang is warm.

        sound: whether no rank was killed, and with it maybe a compiler while it wrote a file.
        """
        if self._running is None:
            return
        self._stop(self._running)
        if not sound:
            await asyncio.to_thread(drop_unfinished, self._folder, self._known)
            return
        await asyncio.wait([self._send_once()], timeout=_LAST_S)

    def close(self) -> None:
        """End all work: the task is over."""
        self._stop(self._running)
        self._stop(self._sending)

    def _stop(self, work: asyncio.Task[None] | None) -> None:
        if work is not None:
            work.cancel()

    async def _run(self, environment: str, answer: Path) -> None:
        try:
            async with asyncio.timeout(LOAD_S):
                await self._load(environment)
        except TimeoutError:
            self._note_not_loaded(f"It did not come within {LOAD_S:.0f} s")
        except (ServiceUnavailable, *_REFUSED) as error:
            self._note_not_loaded(str(error))
        finally:
            with suppress(OSError):  # The attempt may be over.
                answer.touch()  # noqa: ASYNC240 - a local disk
        await self._follow()

    # From the service.

    async def _load(self, environment: str) -> None:
        if self._environment not in ("", environment):
            # The task's packages or torch changed.
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
            self._known, self._pieces = frozenset(), set()
        self._environment, self._damaged = environment, []
        pieces = (await self._client.compile_cache(environment)).pieces
        for piece in pieces:
            if piece.sha256 not in self._pieces:
                await self._add(piece)
        if self._damaged:
            self._note(
                f"Of the code that torch.compile made before, {len(self._damaged)} of {len(pieces)} parts "
                f"came damaged to {self._node}: they are compiled again."
            )

    async def _add(self, piece: BlobInfo) -> None:
        path = self._folder.with_name("compiled-piece.new")
        try:
            await self._client.fetch_compiled(self._environment, piece.sha256, path)
            self._known |= await asyncio.to_thread(unpack, path, self._folder)
        except (BlobDamaged, PieceDamaged) as error:
            log.warning("a piece of the compile cache is damaged: %s", error)
            self._damaged.append(piece.sha256)
        else:
            self._pieces.add(piece.sha256)
        finally:
            path.unlink(missing_ok=True)

    def _note_not_loaded(self, why: str) -> None:
        why = why.rstrip(".")
        self._note(f"The code that torch.compile made before was not loaded on {self._node}. {why}.")

    # To the service.

    async def _follow(self) -> None:
        """Send what is new each time that nothing more came for a while."""
        before: frozenset[str] = frozenset()
        while True:
            await asyncio.sleep(LOOK_S)
            new = await asyncio.to_thread(self._new_files)
            if new and new == before:
                await asyncio.shield(self._send_once())
            before = new

    def _new_files(self) -> frozenset[str]:
        return files_of(self._folder) - self._known

    def _send_once(self) -> asyncio.Task[None]:
        """Return the sending that is under way, or begin it."""
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return self._sending

    async def _send(self) -> None:
        new = await asyncio.to_thread(self._new_files)
        if not new and not self._damaged:
            return
        path = self._folder.with_name("compiled-new.tar.gz")
        try:
            if files := await self._asked_for(new):
                await asyncio.to_thread(pack, self._folder, files, path)
                await self._upload(path)
        except _REFUSED as error:
            self._note(f"What torch.compile made on {self._node} is not stored. {error}")
        finally:
            path.unlink(missing_ok=True)
        self._known |= new

    async def _asked_for(self, new: frozenset[str]) -> list[str]:
        """Return the files that no other task of the attempt sends."""
        entries = entries_of(new)
        offered = CompiledEntries(
            environment=self._environment,
            entries=tuple(entries)[:MOST_ENTRIES],
            damaged=tuple(self._damaged),
        )
        asked = await with_retries(lambda: self._client.offer_compiled(offered))
        self._damaged = []
        return [file for entry in asked for file in entries[entry]]

    async def _upload(self, path: Path) -> None:
        size_bytes = path.stat().st_size  # noqa: ASYNC240 - a local disk
        if size_bytes > CACHE_BYTES:
            self._note(
                f"What torch.compile made on {self._node} is not stored: it has {size_bytes / 1e6:,.0f} MB, "
                f"and {CACHE_BYTES / 1e6:,.0f} MB may be stored."
            )
            return
        piece = await with_retries(lambda: self._client.send_compiled(self._environment, path))
        self._pieces.add(piece.sha256)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
            self._changed()
