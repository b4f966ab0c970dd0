"""A job as plain text, where there are no widgets: a terminal, a log, `--plain`."""

from __future__ import annotations

import sys

from .terminal import TailChange
from .view import RunView, duration, progress_words

_MOST_LINES = 5000


class PlainScreen:
    """A screen (see follow.Screen) that prints rank 0's lines and each change of state."""

    def __init__(self) -> None:
        self._said = ""
        self._printed = 0
        self._next_line = 0
        self._step = -1

    def show(self, view: RunView, now: float) -> None:
        self._say_state(view, now)
        self._print_lines(view, whole_lines_only=True)
        self._say_progress(view)

    def end(self, view: RunView, now: float) -> None:
        self._print_lines(view, whole_lines_only=False)
        self._say_state(view, now)
        _write(
            f"[job {view.job.id}] {duration(view.elapsed_s(now))}, full log: %distribute logs {view.job.id}"
        )

    def _say_state(self, view: RunView, now: float) -> None:
        # The expected start changes all the time; it is told once for each state.
        said = f"{view.title()}|{view.notice}|{view.job.reason}"
        if said != self._said:
            self._said = said
            detail = view.detail(now)
            _write(f"[job {view.job.id}] {view.title()}" + (f": {detail}" if detail else ""))

    def _print_lines(self, view: RunView, whole_lines_only: bool) -> None:
        if not view.tails:
            return
        tail = view.tails[min(view.tails)].whole()
        ready = tail.lines[:-1] if whole_lines_only and tail.lines else tail.lines
        if self._next_line < tail.first:
            _write(f"… {tail.first - self._next_line} lines left out")
            self._next_line = tail.first
        new = ready[self._next_line - tail.first :]
        self._next_line += len(new)
        self._print(TailChange(tail.first, self._next_line, tuple(new)), view)

    def _print(self, change: TailChange, view: RunView) -> None:
        room = _MOST_LINES - self._printed
        if change.lines and room > 0:
            _write("\n".join(change.lines[:room]))
            if len(change.lines) >= room:
                _write(f"… no more is shown here; all of it: %distribute logs {view.job.id}")
        self._printed += len(change.lines)

    def _say_progress(self, view: RunView) -> None:
        progress = view.metrics.progress
        if progress is None or not progress.total:
            return
        step = int(10 * progress.done / progress.total)
        if step != self._step:
            self._step = step
            words = progress_words(progress)
            _write(f"[job {view.job.id}] {words['text']}" + (f", {words['left']}" if words["left"] else ""))


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
