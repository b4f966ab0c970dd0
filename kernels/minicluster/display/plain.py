"""Shows a job as plain text: in a terminal, in a log, or with `--plain`."""

from __future__ import annotations

import sys

from minicluster.display.view import RunView, duration, progress_words

_MOST_LINES = 5000


class PlainScreen:
    """A screen (see follow.Screen) that prints state changes and one rank's lines.

    It follows the lowest rank that has printed, and switches when a lower rank starts to print.
    """

    def __init__(self) -> None:
        self._last_state = ""
        self._printed = 0
        self._next_line: dict[int, int] = {}
        self._rank: int | None = None
        self._step = -1

    def show(self, view: RunView, now: float) -> None:
        # A job's end is often known before its last lines: `end` prints it after them.
        if not view.job.state.terminal:
            self._print_state(view, now)
        if view.tails:
            rank = min(view.tails)
            self._print_lines(view, rank, *view.tails[rank].finished())
        self._print_progress(view)

    def end(self, view: RunView, now: float) -> None:
        if view.tails:
            rank = min(view.tails)
            tail = view.tails[rank]
            self._print_lines(view, rank, tail.whole().first, tail.lines())
        self._print_state(view, now)
        took = duration(view.elapsed_s(now))
        _write(f"[job {view.job.id}] {took}, full log: %distribute logs {view.job.id}")

    def _print_state(self, view: RunView, now: float) -> None:
        # Leave out the predicted start: it changes all the time, so it is printed once per state.
        state = f"{view.title()}|{view.notice}|{view.job.reason}|{view.job.note}|{view.in_contact}"
        if state != self._last_state:
            self._last_state = state
            detail = view.detail(now)
            _write(f"[job {view.job.id}] {view.title()}" + (f": {detail}" if detail else ""))

    def _print_lines(self, view: RunView, rank: int, first: int, lines: list[str]) -> None:
        if self._rank not in (None, rank):
            _write(f"[job {view.job.id}] output of rank {rank}:")
        self._rank = rank
        next_line = self._next_line.get(rank, 0)
        if next_line < first:
            _write(f"… {first - next_line} lines left out")
            next_line = first
        new = lines[next_line - first :]
        self._next_line[rank] = next_line + len(new)
        room = _MOST_LINES - self._printed
        if new and room > 0:
            _write("\n".join(new[:room]))
            if len(new) >= room:
                _write(f"… no more is shown here; full output: %distribute logs {view.job.id}")
        self._printed += len(new)

    def _print_progress(self, view: RunView) -> None:
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
