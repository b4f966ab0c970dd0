"""Hands the cells of sessions to their ranks, one after the other, and collects how they end.

What must outlive the service is in the store. How single ranks ended a cell is not: agents repeat it until it
is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from minicluster.wire import JobState
from minicluster.wire.sessions import (
    CellEnd,
    CellEnding,
    CellOrder,
    CellProgress,
    CellSignals,
    CellState,
    CellSubmit,
    SessionCell,
)
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.jobs.root_cause import first_error
from minicluster_hub.storage.logs import JobLogs
from minicluster_hub.store import Store
from minicluster_hub.store.jobs.session_cells import CellRecord
from minicluster_hub.support.notifier import Notifier

LEAVE_AFTER_S = 1.0
"""How long ranks may go on after one has failed: then its connections end, so that none waits for it."""
PRINTED_BYTES = 64 << 10
"""What a cell's answer has of each rank's output; the session's page has all of it."""


class CellRefused(Exception):
    """A session takes no cell now. code: for the client."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


@dataclass
class OpenCell:
    """The cell that a session runs. group: see CellOrder."""

    record: CellRecord
    group: int
    ends: dict[int, CellEnd] = field(default_factory=dict)
    ending: CellEnding = field(default_factory=CellEnding)
    interrupted: bool = False
    leaving: bool = False


class SessionManager:
    """`changes` notifies the id of a session's job when it has another cell, or one has ended.

    ranks_of: returns the ranks of a session's attempt. orders_changed: has agents look at their orders.
    """

    def __init__(
        self,
        store: Store,
        ranks_of: Callable[[int], Collection[int]],
        logs: JobLogs,
        orders_changed: Callable[[], None],
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self.changes = Notifier()
        self._store = store
        self._ranks_of = ranks_of
        self._logs = logs
        self._orders_changed = orders_changed
        self._clock = clock
        self._log = log
        self._open: dict[int, OpenCell | None] = {}
        self._groups: dict[int, int] = {}

    # What the session's owner asks.

    def submit(self, job: JobRecord, request: CellSubmit) -> SessionCell:
        """Have a session run a cell; the same key again is the same cell. Raises CellRefused."""
        if not job.spec.session:
            raise CellRefused("no_session", f"job {job.id} is no session", "%distribute up starts one")
        if job.state not in (JobState.QUEUED, JobState.STARTING, JobState.RUNNING):
            raise CellRefused("session_over", f"session {job.id} is {job.state.value}", "%distribute up")
        running = self._current(job.id)
        if running is not None:
            known = self._store.session_cells.of_key(job.id, request.idempotency_key)
            if known is None:
                message = f"session {job.id} still runs cell {running.record.number}"
                raise CellRefused("cell_runs", message, "wait for its end, or interrupt it")
            return self.shown(known)
        record, new = self._store.session_cells.submit(
            job.id, request, self._logs.sizes(job.id, job.attempts), self._clock()
        )
        if new:
            self._open[job.id] = OpenCell(record, self._groups.get(job.id, 0))
            self.changes.notify(job.id)
        return self.shown(record)

    def interrupt(self, job_id: int, number: int) -> None:
        """End a cell with KeyboardInterrupt; the session stays."""
        cell = self._current(job_id)
        if cell is not None and cell.record.number == number and not cell.interrupted:
            cell.interrupted = True
            self._orders_changed()

    def cell(self, job_id: int, number: int) -> SessionCell | None:
        record = self._store.session_cells.cell(job_id, number)
        return None if record is None else self.shown(record)

    def shown(self, record: CellRecord) -> SessionCell:
        return SessionCell.model_construct(
            job_id=record.job_id,
            number=record.number,
            state=record.state,
            error=record.error,
            result=record.ending.result,
            result_blob=record.ending.result_blob,
            printed=self._printed(record) if record.state.over else {},
            submitted_at=record.submitted_at,
            ended_at=record.ended_at,
        )

    def _printed(self, record: CellRecord) -> dict[str, str]:
        """Return the end of what each rank printed since the cell began."""
        job = self._store.job(record.job_id)
        if job is None:
            return {}
        found: dict[str, str] = {}
        for stream, size in self._logs.sizes(job.id, job.attempts).items():
            start = max(record.output.get(stream, 0), size - PRINTED_BYTES)
            if stream.startswith("rank-") and start < size:
                data = self._logs.read(job.id, job.attempts, stream, start, size - start)
                found[stream] = data.decode(errors="replace")
        return found

    # What agents ask.

    def signals(self, job_id: int) -> CellSignals:
        """Return what the ranks shall do about the cell that runs."""
        cell = self._open.get(job_id)
        if cell is None:
            return CellSignals()
        number = cell.record.number
        return CellSignals(interrupt=number if cell.interrupted else 0, leave=number if cell.leaving else 0)

    def next_cell(self, job_id: int, after: int) -> CellOrder | None:
        """Return the cell after the one with this number, if there is one to run."""
        cell = self._current(job_id)
        if cell is None or cell.record.number <= after or cell.record.body is None:
            return None
        body = cell.record.body
        return CellOrder.model_construct(
            payload=body.payload,
            payload_sha256=body.payload_sha256,
            parts=body.parts,
            number=cell.record.number,
            group=cell.group,
        )

    def receive(self, job_id: int, ranks: Collection[int], progress: CellProgress) -> None:
        """Take how the ranks of a task ended a cell."""
        cell = self._current(job_id)
        if cell is None or cell.record.number != progress.number:
            return
        cell.ends |= {end.rank: end for end in progress.ends if end.rank in ranks}
        if progress.result is not None or progress.result_blob is not None:
            cell.ending = CellEnding.model_construct(result=progress.result, result_blob=progress.result_blob)
        if cell.ends.keys() >= set(self._ranks_of(job_id)):
            self._conclude(job_id, cell)
        elif any(end.error for end in cell.ends.values()) and not cell.leaving:
            asyncio.get_running_loop().call_later(LEAVE_AFTER_S, self._let_leave, job_id, cell)

    def _let_leave(self, job_id: int, cell: OpenCell) -> None:
        """Have the ranks that have ended a cell close their connections, if others still wait for them."""
        if self._open.get(job_id) is cell and not cell.leaving:
            cell.leaving = True
            self._orders_changed()

    def _conclude(self, job_id: int, cell: OpenCell) -> None:
        errors = [end.error for end in cell.ends.values() if end.error is not None]
        interrupted = cell.interrupted and all(
            end.interrupted or cell.leaving for end in cell.ends.values() if end.error is not None
        )
        state = CellState.SUCCEEDED
        if errors:
            state = CellState.INTERRUPTED if interrupted else CellState.FAILED
        error = first_error(errors)
        self._store.session_cells.end(
            cell.record, state, self._clock(), error=error, ending=cell.ending, breaks_group=cell.leaving
        )
        self._groups[job_id] = cell.group + cell.leaving
        self._open[job_id] = None
        self.changes.notify(job_id)

    def _current(self, job_id: int) -> OpenCell | None:
        """Return the cell that a session runs; read from the store once."""
        if job_id not in self._open:
            newest, breaks = self._store.session_cells.newest(job_id)
            self._groups[job_id] = breaks
            runs = newest is not None and newest.ended_at is None
            self._open[job_id] = OpenCell(newest, breaks) if runs and newest is not None else None
        return self._open[job_id]
