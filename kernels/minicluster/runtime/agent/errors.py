"""Why a rank ended: from its exit status and error file to an error for its owner. Pure."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minicluster.wire import ErrorKind, JobError, RankReport

_SIGNAL_WORDS: dict[int, tuple[str, str]] = {
    signal.SIGSEGV: ("segmentation fault", "Native code crashed; the rank's output ends with where."),
    signal.SIGABRT: ("abort", "A library gave up; the rank's output ends with why."),
    signal.SIGBUS: ("bus error", "Often /dev/shm is full: use num_workers=0, or more shared memory."),
    signal.SIGFPE: ("arithmetic error", "Native code divided by zero."),
    signal.SIGILL: ("illegal instruction", "A library was built for another processor."),
    signal.SIGKILL: ("killed from outside", "Someone or something on the node ended it, without a trace."),
    signal.SIGTERM: ("asked to end from outside", "Someone or something on the node ended it."),
}

ERRORS_BYTES = 4 << 20
"""Of one report, which has 8 MB at most: hundreds of ranks may fail at once, each with a long traceback."""


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended.

    status: from waitpid. finished: the cell had run to its end. account: the content of the error file.
    ended_because: why the agent ended it, empty if it did not. memory_kills: processes that the kernel killed
    for memory while the rank lived. memory_limit_bytes: of the task; None: without a limit.
    at: seconds since the epoch.
    """

    rank: int
    node: str
    status: int
    at: float
    finished: bool = False
    account: dict[str, Any] | None = None
    ended_because: str = ""
    memory_kills: int = 0
    memory_limit_bytes: int | None = None

    @property
    def exit_code(self) -> int:
        """Return the exit code, negative for a signal's number."""
        return os.waitstatus_to_exitcode(self.status)


def failure_of(end: RankEnd) -> JobError | None:
    """Return why the rank failed, None when it did not."""
    if end.finished:
        return None
    if end.account and not (end.ended_because and _extra(end).get("interrupted")):
        return _of_account(end)
    if end.ended_because:
        return _error(end, ErrorKind.SIGNAL, f"Rank {end.rank} was ended: {end.ended_because}.")
    if end.exit_code > 0:
        text = f"Rank {end.rank} on {end.node} ended with exit code {end.exit_code}, before the cell's end."
        return _error(end, ErrorKind.EXIT, text, "It called os._exit(), or a library did.")
    if end.exit_code == 0:
        return None
    return _killed(end)


def with_first_errors(reports: Sequence[RankReport]) -> tuple[RankReport, ...]:
    """Drop tracebacks and stacks of the last errors, if a report has no room for all."""
    left = ERRORS_BYTES
    by_rank: dict[int, RankReport] = {}
    for report in sorted(reports, key=lambda one: one.error.at or 0.0 if one.error else 0.0):
        if report.error is not None:
            left -= len(repr(report.error))  # about as long as it is sent
            if left < 0:
                brief = report.error.model_copy(update={"traceback": "", "stack": None})
                report = report.model_copy(update={"error": brief})
        by_rank[report.rank] = report
    return tuple(by_rank[report.rank] for report in reports)


def note_of(end: RankEnd) -> str:
    """Return what the owner should know about a rank that did not fail; empty if there is nothing."""
    if end.finished and end.ended_because:
        return f"Rank {end.rank} had done its work but hung at its exit, and was ended: {end.ended_because}."
    if end.finished and end.exit_code != 0:
        return f"Rank {end.rank} had done its work, and then ended with {_ending(end)}."
    if not end.finished and end.exit_code == 0:
        return f"Rank {end.rank} left with os._exit(0) before the cell's end; its results are not there."
    return ""


def _of_account(end: RankEnd) -> JobError:
    reported: Any = (end.account or {}).get("message", "")
    account: dict[str, Any] = reported if isinstance(reported, dict) else {"message": str(reported)}
    message, code, extra = account.get("message", ""), account.get("errorCode", end.exit_code), _extra(end)
    at = float(extra.get("at") or extra.get("timestamp") or end.at)
    if extra.get("exit"):
        text = f"Rank {end.rank} on {end.node} ended with exit code {code}: {message}."
        return _error(end, ErrorKind.EXIT, text, at=at, exit_code=code)
    hint, traceback = extra.get("hint", ""), extra.get("py_callstack", "")
    return _error(end, ErrorKind.EXCEPTION, message, hint, traceback, at=at, exit_code=code)


def _killed(end: RankEnd) -> JobError:
    if end.exit_code == -signal.SIGKILL and end.memory_kills:
        text = f"Rank {end.rank} on {end.node} was killed because {_full(end.memory_limit_bytes)}."
        hint = "Use a smaller batch, fewer loader processes, or load the data in parts."
        return _error(end, ErrorKind.MEMORY, text, hint)
    _, hint = _SIGNAL_WORDS.get(-end.exit_code, ("", ""))
    return _error(end, ErrorKind.SIGNAL, f"Rank {end.rank} on {end.node} was killed by {_ending(end)}.", hint)


def _full(limit_bytes: int | None) -> str:
    """Say whose memory was full."""
    if limit_bytes is None:
        return "the node ran out of memory"
    return f"its task had used all of the {limit_bytes / 1e9:.1f} GB of memory that its slots bring there"


def _ending(end: RankEnd) -> str:
    if end.exit_code >= 0:
        return f"exit code {end.exit_code}"
    number = -end.exit_code
    words, _ = _SIGNAL_WORDS.get(number, ("", ""))
    # Real-time signals have no name in Python.
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"{name} ({words})" if words else name


def _extra(end: RankEnd) -> dict[str, Any]:
    message = (end.account or {}).get("message", {})
    return message.get("extraInfo", {}) if isinstance(message, dict) else {}


def _error(
    end: RankEnd,
    kind: ErrorKind,
    message: str,
    hint: str = "",
    traceback: str = "",
    *,
    at: float | None = None,
    exit_code: int | None = None,
) -> JobError:
    return JobError(
        kind=kind,
        message=message,
        rank=end.rank,
        node=end.node,
        traceback=traceback,
        hint=hint,
        exit_code=end.exit_code if exit_code is None else exit_code,
        at=end.at if at is None else at,
    )
