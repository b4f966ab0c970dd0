"""What a long command shows: a line per step with its time; in a terminal also what it waits for."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from minicluster_hub.launch.messages import say

_NAME_WIDTH, _TOLD_WIDTH = 16, 80


class Step:
    """One step under way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.detail, self.how = "", ""
        self._began = time.monotonic()
        self._told = ""

    def tell(self, what: str) -> None:
        """Show what is being waited for: in place on a terminal, each change once in a file."""
        what = what.splitlines()[0][:_TOLD_WIDTH] if what else ""
        if what == self._told or not sys.stdout.isatty():
            return
        self._told = what
        sys.stdout.write(f"\r\x1b[K  {self.name:<{_NAME_WIDTH}}{'...':>9}  {what}")
        sys.stdout.flush()

    def end(self, detail: str, how: str = "") -> None:
        self.detail, self.how = detail, how

    def line(self) -> str:
        took_s = time.monotonic() - self._began
        how = f"  ({self.how})" if self.how else ""
        return f"  {self.name:<{_NAME_WIDTH}}{took_s:7.1f} s  {self.detail}{how}"

    def clear(self) -> None:
        if self._told:
            sys.stdout.write("\r\x1b[K")


class Steps:
    """All steps of a command; `changes`: how many of them made or changed something."""

    def __init__(self) -> None:
        self.changes = 0

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Show a step's line when it is done."""
        step = Step(name)
        try:
            yield step
        finally:
            step.clear()
        self.count(int(step.how not in ("", "unchanged")))
        say(step.line())

    def done(self, name: str, detail: str, how: str = "") -> None:
        """Show a step that took no time."""
        with self.step(name) as step:
            step.end(detail, how)

    def count(self, changes: int) -> None:
        self.changes += changes
