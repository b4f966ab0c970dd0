"""Hands the cells of sessions to their ranks, one after the other, and collects how they end.

What must outlive the service is in the store. How single ranks ended a cell is not: agents repeat it until it
is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from minicluster.wire import ErrorKind, JobError, JobState
from minicluster.wire.sessions import (
    CellBody,
    CellEnd,
    CellEnding,
    CellOrder,
    CellProgress,
    CellSignals,
    CellState,
    CellSubmit,
    SessionCell,
)
from minicluster_hub.jobs.records import JobRecord, StoredState
from minicluster_hub.jobs.root_cause import first_error
from minicluster_hub.jobs.states import TransitionImpossible
from minicluster_hub.storage.logs import JobLogs
from minicluster_hub.store import Store
from minicluster_hub.store.jobs.session_cells import CellRecord, FormerCells
from minicluster_hub.support.notifier import Notifier, Subscription

LEAVE_AFTER_S = 1.0
"""How long ranks may go on after one has failed: then its connections end, so that none waits for it."""
MOST_NAMED = 8
_NO_RANKS = "%distribute up starts another; after %distribute down, cells run as jobs of their own."
_NOTE_EVERY_S = 60.0
_IDLE, _PRINTED = "idle", "rank-"
PRINTED_BYTES = 64 << 10
"""What a cell's answer has of each rank's output; the session's page has all of it."""


@dataclass(frozen=True)
class SessionLimits:
    """idle_s: how long a session may run no cell, in seconds; 0: for ever. warn_s: how long before its owner
    is warned.
    """

    idle_s: float = 1200.0
    warn_s: float = 120.0


@dataclass(frozen=True)
class SessionJobs:
    """What sessions ask of the job service about their jobs.

    stored: the newest observation. ranks_of: returns the ranks of a job's attempt. stop: stops a job, with a
    reason. annotate: shows a note beside a job. orders_changed: has agents look at their orders. warn: sends
    a job's owner a notice, with a reason.
    """

    stored: Callable[[], StoredState]
    ranks_of: Callable[[int], Collection[int]]
    stop: Callable[[int, str], object]
    annotate: Callable[[int, str, str], None]
    orders_changed: Callable[[], None]
    warn: Callable[[JobRecord, str], None]


class CellRefused(Exception):
    """A session takes no cell now. code: for the client."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


@dataclass
class OpenCell:
    """The cell that a session runs. former: those before it."""

    record: CellRecord
    former: FormerCells
    ends: dict[int, CellEnd] = field(default_factory=dict)
    ending: CellEnding = field(default_factory=CellEnding)
    interrupted: bool = False
    leaving: bool = False


class SessionManager:
    """`changes` notifies the id of a session's job when it has another cell, or one has ended.

    `run` belongs to the service that leads: it ends sessions that nobody uses.
    """

    def __init__(
        self,
        store: Store,
        jobs: SessionJobs,
        logs: JobLogs,
        limits: SessionLimits,
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self.changes = Notifier()
        self._new = Subscription()
        self._store = store
        self._jobs = jobs
        self._logs = logs
        self._limits = limits
        self._warned: set[int] = set()
        self._clock = clock
        self._log = log
        self._open: dict[int, OpenCell | None] = {}
        self._former: dict[int, FormerCells] = {}

    # What the session's owner asks.

    def submit(self, job: JobRecord, request: CellSubmit) -> SessionCell:
        """Have a session run a cell; the same key again is the same cell. Raises CellRefused."""
        if not job.spec.session:
            raise CellRefused("no_session", f"job {job.id} is no session", "%distribute up starts one")
        if job.state not in (JobState.QUEUED, JobState.STARTING, JobState.RUNNING):
            raise CellRefused("session_over", f"session {job.id} is {job.state.value}", _NO_RANKS)
        running = self._current(job.id)
        if request.attempt and (job.state is not JobState.RUNNING or job.attempts != request.attempt):
            raise _ranks_are_new(job)
        if running is not None:
            known = self._store.session_cells.of_key(job.id, request.idempotency_key)
            if known is None:
                message = f"session {job.id} still runs cell {running.record.number}"
                raise CellRefused("cell_runs", message, "wait for its end, or interrupt it")
            return self.shown(known)
        # Only the owner's own: a hash grants nothing. They are renewed, so that they stay until its end.
        blobs = _blobs_of(request)
        if blobs and (lacks := self._store.blobs.renew_all(job.owner, blobs, self._clock())):
            raise CellRefused("missing_blob", f"the cell's payload {min(lacks)} is missing", "PUT it first")
        attempt = job.attempts if job.state is JobState.RUNNING else 0
        record, new = self._store.session_cells.submit(
            job.id, attempt, request, self._logs.sizes(job.id, job.attempts), self._clock()
        )
        if new:
            self._jobs.annotate(job.id, "", _IDLE)
            self._open[job.id] = OpenCell(record, self._former.get(job.id, FormerCells()))
            self.changes.notify(job.id)
        return self.shown(record)

    def interrupt(self, job_id: int, number: int) -> None:
        """End a cell with KeyboardInterrupt; the session stays, unless its ranks are not there yet."""
        cell, job = self._current(job_id), self._store.job(job_id)
        if cell is None or cell.record.number != number or cell.interrupted or job is None:
            return
        cell.interrupted = True
        self._jobs.orders_changed()
        if job.state in (JobState.QUEUED, JobState.STARTING):
            with suppress(TransitionImpossible):
                self._jobs.stop(job_id, "it was interrupted before its ranks were there")

    def is_running(self, job_id: int, number: int) -> bool:
        """Whether a session runs this cell now."""
        cell = self._current(job_id)
        return cell is not None and cell.record.number == number

    def newest(self, job: JobRecord) -> SessionCell:
        """Return the newest cell of a session. Raises CellRefused if the job is none, or has none."""
        record, _ = self._store.session_cells.newest(job.id)
        if record is None:
            raise CellRefused("no_session", f"job {job.id} is no session", "%distribute up starts one")
        return self.shown(record)

    def record(self, job_id: int, number: int) -> CellRecord | None:
        """Return a cell of a session."""
        return self._store.session_cells.cell(job_id, number)

    def shown(self, record: CellRecord) -> SessionCell:
        """Return a cell as its owner sees it."""
        grown = self._grown(record) if record.state.over else {}
        return SessionCell.model_construct(
            job_id=record.job_id,
            number=record.number,
            state=record.state,
            error=record.error,
            result=record.ending.result,
            result_blob=record.ending.result_blob,
            printed=self._printed(record, grown),
            drawn=any(not stream.startswith(_PRINTED) for stream in grown),
            submitted_at=record.submitted_at,
            ended_at=record.ended_at,
        )

    def _grown(self, record: CellRecord) -> dict[str, tuple[int, int]]:
        """Return the streams that a cell has written: where its part of each begins, and where it ends."""
        after = self.record(record.job_id, record.number + 1)
        sizes = self._logs.sizes(record.job_id, record.attempt) if after is None else after.output
        begins = record.output
        return {
            stream: (begins.get(stream, 0), size)
            for stream, size in sizes.items()
            if size > begins.get(stream, 0) and not stream.startswith("agent-")
        }

    def _printed(self, record: CellRecord, grown: Mapping[str, tuple[int, int]]) -> dict[str, str]:
        """Return the end of what each rank printed since the cell began."""
        found: dict[str, str] = {}
        for stream, (begin, end) in grown.items():
            if stream.startswith(_PRINTED):
                start = max(begin, end - PRINTED_BYTES)
                data = self._logs.read(record.job_id, record.attempt, stream, start, end - start)
                found[stream] = data.decode(errors="replace")
        return found

    # Sessions that nobody uses.

    async def run(self) -> None:
        """End idle sessions until cancelled."""
        while True:
            await self._new.wait(self._end_idle())

    def _end_idle(self) -> float | None:
        """Stop the sessions that are idle for too long; return after how many seconds to look again."""
        waits_s: list[float] = []
        for job in self._jobs.stored().jobs:
            if not (self._limits.idle_s and job.spec.session and job.state is JobState.RUNNING):
                continue
            left_s = self._idle_left_s(job)
            if left_s > 0:
                self._jobs.annotate(job.id, self._idle_note(left_s), _IDLE)
                self._warn(job, left_s)
            else:
                self._log.info("session %s ends: it is idle", job.id)
                with suppress(TransitionImpossible):
                    reason = f"no cell ran in this session for {self._limits.idle_s / 60:.0f} min"
                    self._jobs.stop(job.id, reason)
            if left_s > 0:
                to_warning_s = left_s - self._limits.warn_s
                waits_s.append(min(left_s if to_warning_s <= 0 else to_warning_s, _NOTE_EVERY_S))
        return min(waits_s, default=None)

    def _warn(self, job: JobRecord, left_s: float) -> None:
        """Tell the owner once before a session ends for being idle."""
        if left_s > self._limits.warn_s:
            self._warned.discard(job.id)
        elif job.id not in self._warned:
            self._warned.add(job.id)
            self._jobs.warn(job, f"it ends in {max(1, round(left_s / 60))} min, unless it runs a cell")

    def _idle_note(self, left_s: float) -> str:
        """Return what a session's owner is told about its idle time; "" for less than a minute of it."""
        idle_min = (self._limits.idle_s - left_s) // 60
        if left_s < self._limits.warn_s:
            return f"This session ends in {max(1, round(left_s / 60))} min, unless it runs a cell."
        if idle_min < 1:
            return ""
        return (
            f"No cell for {idle_min:.0f} min; it ends after {self._limits.idle_s / 60:.0f} min without one."
        )

    def _idle_left_s(self, job: JobRecord) -> float:
        """Return for how many seconds a session may still be idle: all of them as long as it runs a cell."""
        newest, _ = self._store.session_cells.newest(job.id)
        if newest is not None and newest.ended_at is None:
            return self._limits.idle_s
        last = newest.ended_at if newest is not None else None
        since = last or job.started_at or job.created_at
        return since + self._limits.idle_s - self._clock()

    # What agents ask.

    def signals(self, job_id: int) -> CellSignals:
        """Return what the ranks shall do about the cell that runs."""
        cell = self._open.get(job_id)
        if cell is None:
            return CellSignals()
        number = cell.record.number
        return CellSignals(interrupt=number if cell.interrupted else 0, leave=number if cell.leaving else 0)

    def blobs(self, job_id: int) -> frozenset[str]:
        """Return the blobs of the cell that a session runs."""
        cell = self._open.get(job_id)
        return _blobs_of(cell.record.body) if cell is not None and cell.record.body else frozenset()

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
            group=cell.former.broke_group,
            unfinished=cell.former.unfinished,
        )

    def receive(self, job_id: int, ranks: Collection[int], progress: CellProgress) -> None:
        """Take how the ranks of a task ended a cell."""
        cell = self._current(job_id)
        if cell is None or cell.record.number != progress.number:
            return
        cell.ends |= {end.rank: end for end in progress.ends if end.rank in ranks}
        if progress.result is not None or progress.result_blob is not None:
            cell.ending = CellEnding.model_construct(result=progress.result, result_blob=progress.result_blob)
        if cell.ends.keys() >= set(self._jobs.ranks_of(job_id)):
            self._conclude(job_id, cell)
        elif any(end.error for end in cell.ends.values()) and not cell.leaving:
            asyncio.get_running_loop().call_later(LEAVE_AFTER_S, self._let_leave, job_id, cell)

    def _let_leave(self, job_id: int, cell: OpenCell) -> None:
        """Have the ranks that have ended a cell close their connections, if others still wait for them."""
        if self._open.get(job_id) is cell and not cell.leaving:
            cell.leaving = True
            self._jobs.orders_changed()

    def job_changed(self, job_id: Hashable) -> None:
        """End the cell of a session whose ranks are gone; called at each change of a job."""
        if isinstance(job_id, int) and self._open.get(job_id) is not None:
            asyncio.get_running_loop().call_soon(self._end_if_lost, job_id)

    def _end_if_lost(self, job_id: int) -> None:
        cell, job = self._open.get(job_id), self._store.job(job_id)
        error = _why_lost(job, cell.record) if cell is not None else None
        if cell is None or error is None:
            return
        self._store.session_cells.end(
            cell.record, CellState.FAILED, self._clock(), error=error, ending=CellEnding()
        )
        del self._open[job_id]
        self._former.pop(job_id, None)
        self.changes.notify(job_id)

    def _conclude(self, job_id: int, cell: OpenCell) -> None:
        errors = [end.error for end in cell.ends.values() if end.error is not None]
        interrupted = cell.interrupted and all(
            end.interrupted or cell.leaving for end in cell.ends.values() if end.error is not None
        )
        state = CellState.SUCCEEDED
        if errors:
            state = CellState.INTERRUPTED if interrupted else CellState.FAILED
        out_of_step = len({end.collectives for end in cell.ends.values()}) > 1
        error = first_error(errors)
        if error is None and out_of_step:
            state, error = CellState.FAILED, _out_of_step(cell.ends.values())
        breaks = cell.leaving or out_of_step or any(end.broke_step for end in cell.ends.values())
        self._store.session_cells.end(
            cell.record, state, self._clock(), error=error, ending=cell.ending, breaks_group=breaks
        )
        self._former[job_id] = FormerCells(
            cell.former.broke_group + breaks, cell.former.unfinished + (state is not CellState.SUCCEEDED)
        )
        self._open[job_id] = None
        self.changes.notify(job_id)

    def _current(self, job_id: int) -> OpenCell | None:
        """Return the cell that a session runs; read from the store once."""
        if job_id not in self._open:
            # Also after a restart of the service: agents ask for the next cell.
            self._new.notify(job_id)
            newest, former = self._store.session_cells.newest(job_id)
            self._former[job_id] = former
            runs = newest is not None and newest.ended_at is None
            self._open[job_id] = OpenCell(newest, former) if runs and newest is not None else None
            if runs:
                self._end_if_lost(job_id)
        return self._open.get(job_id)


def _out_of_step(ends: Iterable[CellEnd]) -> JobError:
    """Return the error of a cell after which the next collective would mix up what ranks send."""
    of_count: dict[int, list[int]] = {}
    for end in sorted(ends, key=lambda end: end.rank):
        of_count.setdefault(end.collectives, []).append(end.rank)
    told = [
        f"{count} on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:MOST_NAMED]))}"
        for count, ranks in sorted(of_count.items())[:MOST_NAMED]
    ]
    return JobError(
        kind=ErrorKind.EXCEPTION,
        message=f"the ranks have not begun the same collectives: {'; '.join(told)} in this process group",
        hint="Each rank has to call all_reduce, barrier and the like, and to make each step of DDP. The next "
        "cell has a new process group; what the ranks have is still there.",
    )


def _ranks_are_new(job: JobRecord) -> CellRefused:
    """Return why a cell is refused that counts on what the ranks had in an earlier attempt."""
    if job.state is JobState.RUNNING:
        message = f"session {job.id} made room for other jobs: its ranks are new, and have no names yet"
        hint = "Run the cells again that make them; mc.checkpoint() there goes on from its newest snapshot."
        return CellRefused("ranks_are_new", message, hint)
    message = f"session {job.id} is {job.state.value}: {job.reason or 'its ranks are not there'}"
    return CellRefused("no_ranks", message, "%distribute queue shows why it waits; run the cell again then.")


def _why_lost(job: JobRecord | None, cell: CellRecord) -> JobError | None:
    """Return why a cell's ranks are gone; None as long as they are there, or are still to come."""
    if job is None:
        return JobError(kind=ErrorKind.LOST, message="the session was removed")
    if job.state.terminal:
        words = f"the session is {job.state.value}{f': {job.reason}' if job.reason else ''}"
        return job.error or JobError(
            kind=ErrorKind.LOST, message=words, hint="%distribute up starts another."
        )
    present = job.state in (JobState.RUNNING, JobState.STOPPING, JobState.FAILING)
    if not cell.attempt or (present and job.attempts == cell.attempt):
        return None
    words = "the session made room for other jobs, and this cell ended with its ranks"
    return JobError(
        kind=ErrorKind.LOST, message=words, hint="They come back without names: %distribute queue"
    )


def _blobs_of(body: CellBody) -> frozenset[str]:
    return frozenset(filter(None, (body.payload_sha256, *body.parts)))
