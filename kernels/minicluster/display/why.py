"""`%distribute why`: shows one sentence, and the line of the cell where each rank is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from minicluster.display.tables import Table
from minicluster.display.view import duration
from minicluster.wire import Collective, JobWhy, RankStack, StackFrame, StackStatus

_MOST_CALLS = 4
_TITLES = ("rank", "in the cell", "calls there", "collective", "no sign of life for")
_SIGHT_TEXTS = {
    StackStatus.STOPPED: "stopped by a signal",
    StackStatus.KERNEL: "held inside the kernel",
    StackStatus.SILENT: "runs, but does not answer",
    StackStatus.STARTING: "still starting",
    StackStatus.ENDED: "its cell is over",
    StackStatus.UNREACHABLE: "its node does not answer",
}


class Why:
    """The answer of `%distribute why`, as text and as HTML."""

    def __init__(self, answer: JobWhy) -> None:
        self._answer = answer
        self._table = Table(_TITLES, _rows(answer.ranks), "")

    def __repr__(self) -> str:
        parts = [self._answer.sentence, self._answer.hint, repr(self._table) if self._answer.ranks else ""]
        return "\n".join(part for part in parts if part)

    def _repr_html_(self) -> str:
        hint = f"<p>{escape(self._answer.hint)}</p>" if self._answer.hint else ""
        table = self._table._repr_html_() if self._answer.ranks else ""
        return f"<p><b>{escape(self._answer.sentence)}</b></p>{hint}{table}"


def _rows(ranks: Sequence[RankStack]) -> tuple[tuple[str, ...], ...]:
    rows = []
    for stack in sorted(ranks, key=lambda stack: stack.rank):
        no_progress = duration(stack.quiet_s) if stack.sight is StackStatus.SEEN else ""
        calls, collective = _calls(stack.frames), _collective(stack.collective)
        rows.append((str(stack.rank), _in_the_cell(stack), calls, collective, no_progress))
        for helper in stack.helpers:
            rows.append(("", _lines(helper), _calls(helper), "", "a process of its own"))
    return tuple(rows)


def _in_the_cell(stack: RankStack) -> str:
    return _SIGHT_TEXTS.get(stack.sight) or _lines(stack.frames) or "not in the cell yet"


def _collective(collective: Collective | None) -> str:
    """Return "in all_reduce 13, float32[10, 20]", or "after" the last one."""
    if collective is None:
        return ""
    when = "after" if collective.is_over else "in"
    tensors = f", {collective.tensors}" if collective.tensors else ""
    return f"{when} {collective.name} {collective.number}{tensors}"


def _lines(frames: Sequence[StackFrame]) -> str:
    """Return the frames of the cell, innermost first: 14: dist.all_reduce(loss) ← 30: train()."""
    return " ← ".join(f"{frame.line}: {frame.text}".rstrip(": ") for frame in frames if frame.cell)


def _calls(frames: Sequence[StackFrame]) -> str:
    """Return the frames below the cell's innermost line, innermost first."""
    inside = []
    for frame in frames:
        if frame.cell:
            break
        inside.append(f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.line})")
    if len(inside) > _MOST_CALLS:
        inside = [*inside[: _MOST_CALLS - 1], "…", inside[-1]]
    return " ← ".join(inside)
