"""The output of a long command: a line per step with its time; on a terminal also the reason for a wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from minicluster_hub.launch.messages import echo

_NAME_WIDTH, _DETAIL_WIDTH = 16, 80


class ShownStep:
    """The line of one running step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.detail, self.change = "", ""
        self._began = time.monotonic()
        self._shown = ""

    def waits_for(self, what: str) -> None:
        """Show on a terminal, in place, what the step waits for."""
        what = what.splitlines()[0][:_DETAIL_WIDTH] if what else ""
        if what != self._shown and sys.stdout.isatty():
            self._shown = what
            sys.stdout.write(f"\r\x1b[K  {self.name:<{_NAME_WIDTH}}{'...':>9}  {what}")
            sys.stdout.flush()

    def end(self, detail: str, change: str = "") -> None:
        """Set the step's result, and the change of the cluster, like "made" or "unchanged"."""
        self.detail, self.change = detail, change

    def line(self) -> str:
        took_s = time.monotonic() - self._began
        change = f"  ({self.change})" if self.change else ""
        return f"  {self.name:<{_NAME_WIDTH}}{took_s:7.1f} s  {self.detail}{change}"

    def clear(self) -> None:
        if self._shown:
            sys.stdout.write("\r\x1b[K")


class Steps:
    """All steps of a command. changes: the number of steps that changed something."""

    def __init__(self) -> None:
        self.changes = 0

    @contextmanager
    def step(self, name: str) -> Iterator[ShownStep]:
        """Run a step, and print its line when it has succeeded."""
        step = ShownStep(name)
        try:
            yield step
        finally:
            step.clear()
        self.changes += step.change not in ("", "unchanged")
        echo(step.line())

    def done(self, name: str, detail: str, change: str = "") -> None:
        """Print the line of a step without a measured time."""
        with self.step(name) as step:
            step.end(detail, change)
