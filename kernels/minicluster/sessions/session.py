"""A session, as its notebook uses it: what to send with a cell, and what came of it."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from minicluster.capture.capture import Captured
from minicluster.capture.cell import CellSource
from minicluster.capture.framework import note_for_session
from minicluster.cell_run import RunContext, capture_cell, framework_of, job_page, upload, upload_cell
from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.display.failures import error_text, failure_lines
from minicluster.display.follow import Follower
from minicluster.display.view import RunView
from minicluster.errors import MiniclusterError
from minicluster.interrupts import StopRequests, interrupts_go_to
from minicluster.options import CellOptions, OptionWrong
from minicluster.results.results import Result, opened, read_result
from minicluster.sessions.marks import Mark, mark_of
from minicluster.wire import ErrorKind, Job, JobError
from minicluster.wire.sessions import INLINE_BYTES, CellState, CellSubmit, SessionCell
from minicluster.wire.training.framework import Framework

_OF_ONE_CELL = {"push", "pull", "plain", "name"}
_NOT_OF_SESSIONS = {"push", "pull", "gather", "detach", "fault_tolerant", "rerun_of", "dry_run"}


class SessionCellError(MiniclusterError):
    """A cell failed on a session's ranks. The ranks, and what they have made, are still there."""

    def __init__(self, cell: SessionCell) -> None:
        self.cell = cell
        self.error = cell.error or JobError(kind=ErrorKind.LOST, message="The cell ended without a reason.")
        super().__init__(error_text(self.error), self.error.hint)

    def _render_traceback_(self) -> list[str]:
        return failure_lines(f"SessionCellError: {self.message}", self.error.traceback, self.hint)


class CellInterrupted(KeyboardInterrupt):
    """A session's cell was interrupted; the session goes on."""

    def _render_traceback_(self) -> list[str]:
        return ["Interrupted. The ranks, and what they have made, are still there."]


class Session:
    """The ranks that cells run on. It knows which names the ranks have, and the marks of our values then."""

    def __init__(self, service: JobServiceClient, job: Job) -> None:
        self.job = job
        self._service = service
        self._on_ranks: dict[str, tuple[Mark, Any]] = {}
        self._framework: Framework | None = None
        """What the ranks are made for; None if another notebook started them."""

    @classmethod
    def start(cls, options: CellOptions, context: RunContext) -> Session:
        """Start a session; return it once its ranks are there. Raises ServiceError."""
        empty = replace(options, push=(), name=options.name or "session")
        captured, cell = capture_cell("pass", "Cell In[up]", empty, context)
        uploaded = upload(captured, cell, empty, context)
        spec = uploaded.spec.model_copy(update={"session": True})
        job = context.service.submit(spec, uuid.uuid4().hex, uploaded.origin)
        session = cls(context.service, job)
        session._framework = spec.framework or Framework.TORCH
        # The first cell does nothing: it is over once all ranks are there.
        over = session._shown(captured, context)
        if over.error is not None:
            raise SessionCellError(over)
        session.job = context.service.job(job.id)
        return session

    @classmethod
    def attach(cls, service: JobServiceClient, job: Job, cell: SessionCell, context: RunContext) -> Session:
        """Return a session that runs already. What its ranks have is theirs, also under our names."""
        session = cls(service, job)
        if not cell.state.over:
            session._follow(cell, context, StopRequests(context.kernel))
        over = session._over(session._submit(session._own_code("tell", context), context))
        session._remember(json.loads(over.printed.get("rank-0", "[]")), context.namespace)
        return session

    def assigned_here(self, names: Iterable[str]) -> None:
        """Take that the notebook assigned names: the ranks get their values again."""
        for name in names:
            self._on_ranks.pop(name, None)

    def whos(self, context: RunContext) -> None:
        """Print the names that the ranks have."""
        _print(self._over(self._submit(self._own_code("show", context), context)))

    def _own_code(self, function: str, context: RunContext) -> Captured:
        """Return a cell that calls a function of `names`, and leaves no name on the ranks."""
        source = f"__import__('minicluster.sessions.names', fromlist=['_']).{function}(globals())"
        return capture_cell(source, "Cell In[session]", CellOptions(push=(), pull=()), context)[0]

    def run(self, source: str, filename: str, options: CellOptions, context: RunContext) -> Result | None:
        """Run a cell on the session's ranks; return what --pull names.

        Raises SessionCellError, CellInterrupted, ServiceError, and as `capture_cell`.
        """
        _refuse_options(options)
        cell = CellSource.parse(source, filename)
        push = options.push if options.push is not None else self._to_send(cell, context)
        # What comes back are copies: the notebook's own objects have gone their own way since they were sent.
        captured, _ = capture_cell(source, filename, replace(options, push=push, pull=(), gather=()), context)
        captured = replace(captured, payload=replace(captured.payload, pull=options.pull or ()))
        if self._framework and (note := note_for_session(framework_of(captured, options), self._framework)):
            print(note)  # noqa: T201
        over = self._shown(captured, context)
        self._remember([*push, *cell.assigned], context.namespace)
        if over.state is CellState.INTERRUPTED:
            raise CellInterrupted
        if over.state is not CellState.SUCCEEDED:
            raise SessionCellError(over)
        return self._result(over, context)

    def pull(self, names: tuple[str, ...], options: CellOptions, context: RunContext) -> Result | None:
        """Return values of the ranks; rank 0's."""
        return self.run("pass", "Cell In[pull]", replace(options, push=(), pull=names), context)

    def stop(self) -> Job:
        """End the session with all that its ranks have."""
        return self._service.stop(self.job.id)

    def _to_send(self, cell: CellSource, context: RunContext) -> tuple[str, ...]:
        """Return the names that the cell reads and the ranks lack, or whose values changed here since."""
        space, known = context.namespace, self._on_ranks
        read = (name for name in sorted(cell.reads) if name in space and not context.hidden(name))
        return tuple(name for name in read if name not in known or known[name][0] != mark_of(space[name]))

    def _remember(self, names: list[str], namespace: Mapping[str, Any]) -> None:
        # A name that is assigned on the ranks is theirs, until the notebook's own value changes.
        values = {name: namespace.get(name, self) for name in names}
        # The values are kept, so that no other object gets the identity of one of them.
        self._on_ranks |= {name: (mark_of(value), value) for name, value in values.items()}

    def _submit(self, captured: Captured, context: RunContext) -> SessionCell:
        """Have the ranks run a cell; return it once it is over, or after a moment as it is then."""
        key, attempt = uuid.uuid4().hex, self.job.attempt
        data = b"" if captured.payload.parts else captured.payload.to_bytes()
        if data and len(data) <= INLINE_BYTES:
            request = CellSubmit.model_construct(idempotency_key=key, attempt=attempt, payload=data)
        else:
            blobs = upload_cell(self._service, captured.payload, captured.names, context.namespace)
            sent = {"payload_sha256": blobs.payload_sha256, "parts": blobs.parts}
            request = CellSubmit(idempotency_key=key, attempt=attempt, **sent)
        try:
            return self._service.run_cell(self.job.id, request)
        except ServiceError as refused:
            if refused.code == "ranks_are_new":
                self._on_ranks.clear()
                self.job = self._service.job(self.job.id)
            raise

    def _shown(self, captured: Captured, context: RunContext) -> SessionCell:
        """Run a cell; return it once it is over, with what it printed and displayed shown."""
        stops = StopRequests(context.kernel)
        with interrupts_go_to(stops.interrupt):
            cell = self._submit(captured, context)
            if cell.state.over and not cell.drawn:
                _print(cell)
                return cell
            return self._follow(cell, context, stops)

    def _follow(self, cell: SessionCell, context: RunContext, stops: StopRequests) -> SessionCell:
        """Show a cell in a panel; return it once it is over."""
        job = self._service.job(self.job.id).model_copy(update={"cell_number": cell.number})
        view = RunView(job, self._service.browser_path(job_page(job.id)), context.tail_lines)
        with interrupts_go_to(stops.interrupt):
            Follower(self._service, view, stops).run(context.make_screen(stops.ask))
        return self._over(cell)

    def _over(self, cell: SessionCell) -> SessionCell:
        """Return a cell once it is over."""
        while not cell.state.over:
            cell = self._service.session_cell(self.job.id, cell.number)
        return cell

    def _result(self, cell: SessionCell, context: RunContext) -> Result | None:
        if cell.result is None and cell.result_blob is None:
            return None
        with tempfile.TemporaryFile(prefix="minicluster-result-") as file:
            if cell.result is not None:
                file.write(cell.result)
            else:
                self._service.download_cell_result(cell, file)
            found = read_result(opened(file, self.job), self.job, context.namespace, None)
        self._remember(list(found.names), found.names)
        return found


def _given(options: CellOptions) -> set[str]:
    """Return the options that are not as by default."""
    default = CellOptions()
    return {one.name for one in fields(options) if getattr(options, one.name) != getattr(default, one.name)}


def _flag(name: str) -> str:
    return next(one.metadata["argument"].name for one in fields(CellOptions) if one.name == name)


def check_options_of_up(options: CellOptions) -> None:
    """Raise OptionWrong if an option means nothing for a session."""
    if given := _given(options) & _NOT_OF_SESSIONS:
        message = f"%distribute up does not take {_flag(min(given))}."
        raise OptionWrong(message, "The ranks of a session stay as they are, and return only what is pulled.")


def _refuse_options(options: CellOptions) -> None:
    if given := _given(options) - _OF_ONE_CELL:
        raise OptionWrong(
            f"This cell runs on ranks that are there already: {_flag(min(given))} is no option of it.",
            "%distribute up takes those of the ranks. After %distribute down, cells are jobs again.",
        )


def _print(cell: SessionCell) -> None:
    """Print what the ranks printed: rank 0's output, and that of the others as far as it differs."""
    first = cell.printed.get("rank-0", "")
    print(first, end="")  # noqa: T201
    for stream, text in sorted(cell.printed.items()):
        if stream != "rank-0" and text != first:
            lines = text.rstrip("\n").splitlines()
            rank = stream.removeprefix("rank-")
            print("\n".join(f"[rank {rank}] {line}" for line in lines))  # noqa: T201
