"""Brings what a job wrote into its output folder to the service, at the end of each attempt."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from minicluster.runtime.agent import output
from minicluster.runtime.agent.link import Backoff, Link, ServiceAway, ServiceRefused
from minicluster.runtime.agent.output import Found, OutputFile
from minicluster.wire import LEFT, ArtifactReport, BlobInfo, RunOrder, SmallFiles, StopMode, TaskReport

AT_ONCE = 4
REPORTED_AT_ONCE = 500
TIME_LEFT_S = {StopMode.INTERRUPT: 8.0, StopMode.ABORT: 55.0, StopMode.YIELD: 55.0, StopMode.KILL: 1.0}
"""After the order to end, for ranks and files together: a little less than the service waits then. A job that
lost a node waits to go on, and may be stopped before it does."""
_PIECE_BYTES = 1 << 20
_STEP_PIECES = 32
_SMALL_BYTES = 64 * 1024
_BATCH_BYTES = 1 << 20
_BATCH_FILES = 200
_SHOWN = 3


class OutputKeeper:
    """Follows the output folders of one job after the other."""

    def __init__(self, scratch: Path, node: str, link: Link, changed: Callable[[], None]) -> None:
        self._scratch = scratch
        self._node = node
        self._link = link
        self._changed = changed
        self._order: RunOrder | None = None
        self._sent: set[str] = set()
        self._brought: dict[str, OutputFile] = {}
        self._lost: list[OutputFile] = []
        self._bringing_again: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._untold: list[ArtifactReport] = []
        self._notes: list[str] = []
        self._until: float | None = None
        self._limit: asyncio.Timeout | None = None
        self._because = ""

    def begin(self, order: RunOrder) -> None:
        """Have an empty folder for a new job; an attempt more of the same one finds what it left."""
        self._stop_work()
        output.forget_other_jobs(self._scratch, order.job_id)
        self._order, self._until, self._because = order, None, ""
        self._sent, self._untold, self._notes = set(), [], []
        self._brought, self._lost = {}, []
        with suppress(OSError):  # A full disk: who writes there is told so.
            self._folder(order).mkdir(parents=True, exist_ok=True)

    def reports(self) -> tuple[ArtifactReport, ...]:
        return tuple(self._untold[:REPORTED_AT_ONCE])

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def told(self, report: TaskReport, missing: Collection[str]) -> bool:
        """Take it that the service knows what a report said; return whether it knows and has all.

        missing: of the files that the report named, those that have to be brought again.
        """
        del self._untold[: len(report.artifacts)]  # One report at a time, with the first of them.
        self._lost += [self._brought[one.path] for one in report.artifacts if one.blob.sha256 in missing]
        self._sent.difference_update(missing)
        if self._lost and self._bringing_again is None:
            self._bringing_again = asyncio.create_task(self._bring_again())
        if self._untold and report.artifacts:
            self._changed()
        return not self._untold and self._bringing_again is None

    @property
    def hurried(self) -> bool:
        return self._until is not None

    def hurry(self, mode: StopMode, because: str) -> None:
        """Say that the attempt is to end: what has not come by then stays here."""
        until = asyncio.get_running_loop().time() + TIME_LEFT_S[mode]
        if self._until is None or until < self._until:
            # Ranks that are killed may have a next attempt here, which goes on with the folder.
            self._until, self._because = until, "" if mode is StopMode.KILL else because
            if self._limit:
                self._limit.reschedule(until)
            self._changed()

    async def finish(self) -> None:
        """Bring all files, the small ones first; wait for a service that is away or has no room."""
        order = self._order
        if order is None:
            return
        if self._until is not None and not self._because:
            # The clearing away took its own time.
            self._until = asyncio.get_running_loop().time() + TIME_LEFT_S[StopMode.KILL]
        await self._bring_all(await asyncio.to_thread(output.look, self._folder(order), order.output))

    def close(self) -> None:
        """Remove everything: the task is over."""
        self._stop_work()
        output.forget_other_jobs(self._scratch, 0)

    def _stop_work(self) -> None:
        if self._bringing_again:
            self._bringing_again.cancel()
            self._bringing_again = None

    async def _bring_again(self) -> None:
        """Bring what the service has lost, or never had."""
        while self._lost:
            lost, self._lost = self._lost, []
            await self._bring_all(Found(lost))
        self._bringing_again = None
        self._changed()

    async def _bring_all(self, found: Found) -> None:
        waiting = list(reversed(found.files))
        coming: dict[str, OutputFile] = {file.name: file for file in found.files}
        try:
            await self._in_time(self._work(waiting, coming, found) for _ in range(AT_ONCE))
        except TimeoutError:
            for name in coming if self._because else ():
                found.leave_out(name, f"there was no time: {self._because}")
        self._notes += [self._sentence(reason, names) for reason, names in found.left_out.items()]

    async def _in_time(self, works: Iterable[Coroutine[object, object, None]]) -> None:
        """Run these at once. Raises TimeoutError when what has not come is to stay here."""
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout_at(self._until) as self._limit, asyncio.TaskGroup() as workers:
                    for work in works:
                        workers.create_task(work)
            finally:
                self._limit = None

    def _folder(self, order: RunOrder) -> Path:
        return output.folder_of(self._scratch, order.job_id)

    async def _work(self, waiting: list[OutputFile], coming: dict[str, OutputFile], found: Found) -> None:
        while waiting:
            batch = _batch(waiting)
            together = len(batch) > 1 and await self._bring_together(batch)
            for file in batch:
                try:
                    if not together:
                        await self._bring(file)
                except ServiceRefused as error:
                    found.leave_out(file.name, error.message)
                except OSError as error:
                    found.leave_out(file.name, error.strerror or str(error))
                del coming[file.name]

    async def _bring_together(self, batch: list[OutputFile]) -> bool:
        """Bring small files at once; say whether they came. What is wrong with one shows when it is alone."""
        backoff = Backoff()
        while True:
            try:
                contents = await asyncio.to_thread(_read, batch)
                await self._link.send_small(SmallFiles.model_construct(contents=contents))
                break
            except ServiceAway:
                await asyncio.sleep(backoff.next_s())
            except (ServiceRefused, OSError):
                return False
        for file, data in zip(batch, contents, strict=True):
            self._tell(file, hashlib.sha256(data).hexdigest(), len(data))
        return True

    async def _bring(self, file: OutputFile) -> None:
        sha256, backoff = await _digest(file), Backoff()
        while sha256 not in self._sent:
            try:
                await self._link.send(f"api/tasks/files/{sha256}", file.size_bytes, _pieces(file))
                self._sent.add(sha256)
            except ServiceAway:
                await asyncio.sleep(backoff.next_s())
        self._tell(file, sha256, file.size_bytes)

    def _tell(self, file: OutputFile, sha256: str, size_bytes: int) -> None:
        part = self._order.group_rank if self._order else 0
        blob = BlobInfo(sha256=sha256, size_bytes=size_bytes)
        self._brought[file.name] = file
        self._untold.append(ArtifactReport(path=file.name, part=part, blob=blob))

    def _sentence(self, reason: str, names: list[str]) -> str:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        shown = ", ".join(names[:_SHOWN])
        return f"{LEFT} on {self._node}: {shown}{more} ({reason})."


def _batch(waiting: list[OutputFile]) -> list[OutputFile]:
    """Take the next file, or several small ones."""
    batch, size_bytes = [waiting.pop()], 0
    while waiting and len(batch) < _BATCH_FILES and waiting[-1].size_bytes <= _SMALL_BYTES:
        size_bytes += waiting[-1].size_bytes
        if batch[0].size_bytes + size_bytes > _BATCH_BYTES:
            break
        batch.append(waiting.pop())
    return batch


def _read(batch: list[OutputFile]) -> tuple[bytes, ...]:
    return tuple(file.path.read_bytes() for file in batch)


async def _digest(file: OutputFile) -> str:
    """Hash a file in steps: a thread that has begun cannot be ended, and the agent would wait for it."""
    digest, pieces = hashlib.sha256(), _pieces(file)

    def step() -> bool:
        some = list(islice(pieces, _STEP_PIECES))
        for piece in some:
            digest.update(piece)
        return bool(some)

    while await asyncio.to_thread(step):
        pass
    return digest.hexdigest()


def _pieces(file: OutputFile) -> Iterator[bytes]:
    """Yield as many bytes as were announced, whatever else writes to the file meanwhile."""
    left = file.size_bytes
    with file.path.open("rb") as opened:
        while left:
            piece = opened.read(min(left, _PIECE_BYTES))
            if not piece:
                raise OSError(f"it became {left} bytes shorter while it was brought")
            left -= len(piece)
            yield piece
