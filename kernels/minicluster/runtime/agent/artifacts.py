"""Uploads what a job wrote into its output folder, at the end of each attempt."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from minicluster.runtime.agent import output
from minicluster.runtime.agent.client import AgentClient, ServiceRefused, with_retries
from minicluster.runtime.agent.output import FoundFiles, OutputFile
from minicluster.wire import LEFT, ArtifactReport, BlobInfo, RunOrder, SmallFiles, StopMode, TaskReport

AT_ONCE = 4
REPORTED_AT_ONCE = 500
TIME_LEFT_S = {StopMode.INTERRUPT: 8.0, StopMode.ABORT: 55.0, StopMode.YIELD: 55.0, StopMode.KILL: 3.0}
"""After the order to end, for ranks and files together: a little less than the service waits then. A job that
lost a node waits to go on, and may be stopped before it does."""
_PIECE_BYTES = 1 << 20
_STEP_PIECES = 32
_SMALL_BYTES = 64 * 1024
_BATCH_BYTES = 1 << 20
_BATCH_FILES = 200
_SHOWN = 3


class OutputUploads:
    """The output folders of one job after the other."""

    def __init__(self, scratch: Path, node: str, client: AgentClient, changed: Callable[[], None]) -> None:
        self._scratch = scratch
        self._node = node
        self._client = client
        self._changed = changed
        self._order: RunOrder | None = None
        self._sent: set[str] = set()
        self._uploaded: dict[str, OutputFile] = {}
        self._lost: list[OutputFile] = []
        self._uploading_again: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._unreported: list[ArtifactReport] = []
        self._notes: list[str] = []
        self._until: float | None = None
        self._limit: asyncio.Timeout | None = None
        self._because = ""

    def begin(self, order: RunOrder) -> None:
        """Make an empty folder for a new job; a further attempt of the same job keeps its files."""
        self._stop_work()
        output.forget_other_jobs(self._scratch, order.job_id)
        self._order, self._until, self._because = order, None, ""
        self._sent, self._unreported, self._notes = set(), [], []
        self._uploaded, self._lost = {}, []
        with suppress(OSError):  # A full disk: the cell gets an error when it writes there.
            self._folder(order).mkdir(parents=True, exist_ok=True)

    def reports(self) -> tuple[ArtifactReport, ...]:
        return tuple(self._unreported[:REPORTED_AT_ONCE])

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def acknowledge(self, report: TaskReport, missing: Collection[str]) -> bool:
        """Handle the answer to a report; return whether the service knows and has all files.

        missing: SHA-256 of files that the report named and that have to be uploaded again.
        """
        del self._unreported[: len(report.artifacts)]  # One report at a time, with the first of them.
        self._lost += [self._uploaded[one.path] for one in report.artifacts if one.blob.sha256 in missing]
        self._sent.difference_update(missing)
        if self._lost and self._uploading_again is None:
            self._uploading_again = asyncio.create_task(self._upload_again())
        if self._unreported and report.artifacts:
            self._changed()
        return self.all_known

    @property
    def all_known(self) -> bool:
        """Whether the service knows and has all files that were uploaded."""
        return not self._unreported and self._uploading_again is None

    @property
    def hurried(self) -> bool:
        return self._until is not None

    def hurry(self, mode: StopMode, because: str) -> None:
        """Set the time by which the attempt ends: files that are not uploaded by then stay here."""
        until = asyncio.get_running_loop().time() + TIME_LEFT_S[mode]
        if self._until is None or until < self._until:
            # Ranks that are killed may have a next attempt here, which goes on with the folder.
            self._until, self._because = until, "" if mode is StopMode.KILL else because
            if self._limit:
                self._limit.reschedule(until)
            self._changed()

    async def finish(self) -> None:
        """Upload all files, the small ones first; wait for a service that is unavailable or has no room."""
        order = self._order
        if order is None:
            return
        if self._until is not None and not self._because:
            # Ending the processes has taken some of the time.
            self._until = asyncio.get_running_loop().time() + TIME_LEFT_S[StopMode.KILL]
        await self._upload_all(await asyncio.to_thread(output.find_files, self._folder(order), order.output))

    def close(self) -> None:
        """Remove everything: the task is over."""
        self._stop_work()
        output.forget_other_jobs(self._scratch, 0)

    def _stop_work(self) -> None:
        if self._uploading_again:
            self._uploading_again.cancel()
            self._uploading_again = None

    async def _upload_again(self) -> None:
        """Upload what the service has lost, or never had."""
        while self._lost:
            lost, self._lost = self._lost, []
            await self._upload_all(FoundFiles(lost))
        self._uploading_again = None
        self._changed()

    async def _upload_all(self, found: FoundFiles) -> None:
        waiting = list(reversed(found.files))
        coming: dict[str, OutputFile] = {file.name: file for file in found.files}
        try:
            async with (
                self._one_at_a_time,
                asyncio.timeout_at(self._until) as self._limit,
                asyncio.TaskGroup() as workers,
            ):
                for _ in range(AT_ONCE):
                    workers.create_task(self._work(waiting, coming, found))
        except TimeoutError:
            for name in coming if self._because else ():
                found.leave_out(name, f"there was no time: {self._because}")
        finally:
            self._limit = None
        for reason, names in found.left_out.items():
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            shown = ", ".join(names[:_SHOWN])
            self._notes.append(f"{LEFT} on {self._node}: {shown}{more} ({reason}).")

    def _folder(self, order: RunOrder) -> Path:
        return output.folder_of(self._scratch, order.job_id)

    async def _work(
        self, waiting: list[OutputFile], coming: dict[str, OutputFile], found: FoundFiles
    ) -> None:
        while waiting:
            batch = _batch(waiting)
            together = len(batch) > 1 and await self._upload_together(batch)
            for file in batch:
                try:
                    if not together:
                        await self._upload(file)
                except ServiceRefused as error:
                    found.leave_out(file.name, error.message)
                except OSError as error:
                    found.leave_out(file.name, error.strerror or str(error))
                del coming[file.name]

    async def _upload_together(self, batch: list[OutputFile]) -> bool:
        """Upload small files together; return whether that succeeded. If not, each is uploaded alone."""

        async def send() -> tuple[bytes, ...]:
            contents = await asyncio.to_thread(lambda: tuple(file.path.read_bytes() for file in batch))
            await self._client.send_small(SmallFiles.model_construct(contents=contents))
            return contents

        try:
            contents = await with_retries(send)
        except (ServiceRefused, OSError):
            return False
        for file, data in zip(batch, contents, strict=True):
            self._add_report(file, hashlib.sha256(data).hexdigest(), len(data))
        return True

    async def _upload(self, file: OutputFile) -> None:
        sha256 = await _digest(file)

        async def send() -> None:
            if sha256 not in self._sent:
                await self._client.send(f"api/tasks/files/{sha256}", file.size_bytes, _pieces(file))
                self._sent.add(sha256)

        await with_retries(send)
        self._add_report(file, sha256, file.size_bytes)

    def _add_report(self, file: OutputFile, sha256: str, size_bytes: int) -> None:
        part = self._order.group_rank if self._order else 0
        blob = BlobInfo(sha256=sha256, size_bytes=size_bytes)
        self._uploaded[file.name] = file
        self._unreported.append(ArtifactReport(path=file.name, part=part, blob=blob))


def _batch(waiting: list[OutputFile]) -> list[OutputFile]:
    """Take the next file, or several small ones."""
    batch, size_bytes = [waiting.pop()], 0
    while waiting and len(batch) < _BATCH_FILES and waiting[-1].size_bytes <= _SMALL_BYTES:
        size_bytes += waiting[-1].size_bytes
        if batch[0].size_bytes + size_bytes > _BATCH_BYTES:
            break
        batch.append(waiting.pop())
    return batch


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
