"""The cells of a session on this node: from the service to the ranks, and how they ended back to it."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from minicluster.runtime.agent.client import AgentClient, ServiceRefused, with_retries
from minicluster.runtime.agent.part_downloads import PartDownloads
from minicluster.runtime.agent.ranks import LocalRank
from minicluster.runtime.paths import AttemptPaths, write_whole
from minicluster.wire import ErrorKind, JobError
from minicluster.wire.sessions import INLINE_BYTES, CellEnd, CellOrder, CellProgress, CellSignals


class SessionFeed:
    """Hands the cells of an attempt to its ranks. One request brings a cell's end and gets the next cell.

    output_sent: waits until the service has all that the ranks printed.
    """

    def __init__(
        self,
        attempt: int,
        ranks: Sequence[LocalRank],
        paths: AttemptPaths,
        client: AgentClient,
        parts: PartDownloads,
        output_sent: Callable[[], Awaitable[None]],
    ) -> None:
        self._attempt = attempt
        self._ranks = ranks
        self._paths = paths
        self._client = client
        self._parts = parts
        self._output_sent = output_sent
        self._running = 0
        self._signals = CellSignals()

    async def run(self) -> None:
        """Run cells until cancelled."""
        progress = CellProgress(attempt=self._attempt)
        while True:
            report = progress
            cell = await with_retries(lambda report=report: self._client.next_cell(report))
            if cell is None or cell.number <= progress.number:
                continue
            progress = await self._run(cell)

    def obey(self, signals: CellSignals) -> None:
        """Interrupt the cell that runs, or let the ranks that have ended it leave the others' collectives."""
        before, self._signals = self._signals, signals
        if signals.interrupt > before.interrupt and signals.interrupt == self._running:
            for rank in self._ranks:
                rank.send(signal.SIGINT, "")
        if signals.leave > before.leave and signals.leave >= self._running:
            for rank in self._ranks:
                rank.leave_cell()

    def end_idle(self) -> None:
        """End the ranks if no cell runs here: there is nothing to interrupt, and nothing to wait for."""
        if not self._running:
            for rank in self._ranks:
                rank.end_session()

    async def _run(self, cell: CellOrder) -> CellProgress:
        payload, result = self._folder / f"cell-{cell.number}", self._folder / f"result-{cell.number}"
        try:
            await self._fetch(cell, payload)
        except (ServiceRefused, OSError) as error:
            return self._not_fetched(cell, str(error))
        self._running = cell.number
        command = {
            "number": cell.number,
            "path": str(payload),
            "result": str(result),
            "group": cell.group,
            "unfinished": cell.unfinished,
        }
        for rank in self._ranks:
            rank.run_cell(command)
        ends = [await self._end_of(rank, cell.number) for rank in self._ranks]
        self._running = 0
        await self._output_sent()
        progress = CellProgress(attempt=self._attempt, number=cell.number, ends=tuple(ends))
        payload.unlink(missing_ok=True)
        progress = await self._with_result(progress, result)
        result.unlink(missing_ok=True)
        return progress

    async def _fetch(self, cell: CellOrder, payload: Path) -> None:
        if cell.payload is not None:
            write_whole(payload, cell.payload)
        elif cell.payload_sha256 is not None:
            await self._client.fetch(cell.payload_sha256, payload)
        if cell.parts:
            await self._parts.fetch_missing(cell.parts)

    def _not_fetched(self, cell: CellOrder, why: str) -> CellProgress:
        """Return that the cell failed here, before it began."""
        message = f"The cell could not be fetched: {why}"
        ends = (
            CellEnd(
                rank=rank.rank,
                error=JobError(kind=ErrorKind.START, message=message, rank=rank.rank, at=time.time()),
            )
            for rank in self._ranks
        )
        return CellProgress(attempt=self._attempt, number=cell.number, ends=tuple(ends))

    async def _end_of(self, rank: LocalRank, number: int) -> CellEnd:
        while True:
            ended, end = await rank.cells.get()
            if ended == number:
                return end

    async def _with_result(self, progress: CellProgress, result: Path) -> CellProgress:
        data = _small(result)
        if data is not None:
            return progress.model_copy(update={"result": data} if data else {})
        blob = await with_retries(lambda: self._client.upload(result))
        return progress.model_copy(update={"result_blob": blob})

    @property
    def _folder(self) -> Path:
        return self._paths.folder


def _small(result: Path) -> bytes | None:
    """Return a result that fits into a message, b"" if there is none; None if it is large."""
    if not result.exists():
        return b""
    return result.read_bytes() if result.stat().st_size <= INLINE_BYTES else None
