"""A session's rank: it stays after its first cell, and runs those that the agent sends."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from minicluster.runtime.rank.groups.default_group import DefaultProcessGroup
from minicluster.runtime.rank.groups.held_loaders import agree_on_loaders
from minicluster.runtime.rank.groups.held_models import has_broken_step
from minicluster.train.objects import CELL

RunCell = Callable[[Path, Path], None]
"""Runs the cell in a file; writes what it returns, if anything, into another one."""


@dataclass(frozen=True)
class CellCommand:
    """The agent's line about a cell. path: of its payload. result: where to write what it returns.

    group, unfinished: see CellOrder.
    """

    number: int
    path: str
    result: str
    group: int
    unfinished: int


class SessionCells:
    """Reads the agent's lines; each cell runs in the rank's `__main__`, and leaves there what it makes.

    namespace: that of `__main__`. report: called with an event for the agent. account_of: returns how to tell
    an error to the agent.
    """

    def __init__(
        self,
        commands_fd: int,
        group: DefaultProcessGroup,
        namespace: Mapping[str, Any],
        run_cell: RunCell,
        report: Callable[..., None],
        account_of: Callable[[BaseException], dict[str, Any]],
    ) -> None:
        self._commands_fd = commands_fd
        self._group = group
        self._namespace = namespace
        self._run_cell = run_cell
        self._report = report
        self._account_of = account_of
        self._interruptible = False
        self._renewed = 0
        self._agreed = 0

    def run(self) -> None:
        """Run cells until the agent ends the session."""
        signal.signal(signal.SIGINT, self._interrupt)
        for command in self._commands():
            if "cell" in command:
                self._run(CellCommand(**command["cell"]))
            elif "end" in command:
                return
            elif "leave" in command:
                # Ranks that wait for this one in a collective get an error, and so end the cell.
                self._group.close_connections()

    def _commands(self) -> Iterator[dict[str, Any]]:
        with open(self._commands_fd, "rb", buffering=0, closefd=False) as pipe:
            for line in pipe:
                yield json.loads(line)

    def _run(self, cell: CellCommand) -> None:
        account: dict[str, Any] | None = None
        interrupted = False
        os.environ[CELL] = str(cell.number)
        try:
            if cell.group > self._renewed:
                self._renewed = cell.group
                self._group.renew(self._namespace)
            if cell.unfinished > self._agreed:
                self._agreed = cell.unfinished
                agree_on_loaders()
            with self._accepting_interrupts():
                self._run_cell(Path(cell.path), Path(cell.result))
        except KeyboardInterrupt as error:
            interrupted, account = True, self._account_of(error)
        except BaseException as error:  # The session goes on, whatever the user's code raised.
            account = self._account_of(error)
        sys.stdout.flush()
        self._report(
            "cell",
            number=cell.number,
            account=account,
            interrupted=interrupted,
            collectives=self._group.collectives,
            broke_step=account is not None and has_broken_step(),
        )

    @contextmanager
    def _accepting_interrupts(self) -> Iterator[None]:
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._interruptible:
            raise KeyboardInterrupt
