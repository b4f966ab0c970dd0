"""Ranks come from a parent that has imported what is installed now, not what was when the task began.

A warm task outlives `pip install`, and its parent keeps the modules that it once imported. So before an
attempt the agent looks at what is installed, and starts another parent when that has changed.
"""

from __future__ import annotations

import logging
import os
import site
import sys
from collections.abc import Callable, Iterator

from minicluster.runtime.agent.parent import Parent

log = logging.getLogger("minicluster.agent")


def installed() -> frozenset[tuple[str, int]]:
    """Return what pip has put where Python looks for modules: packages, and when each came."""
    return frozenset(
        entry for folder in {*sys.path, site.getusersitepackages()} for entry in _packages(folder)
    )


def _packages(folder: str) -> Iterator[tuple[str, int]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info")):
                    yield entry.path, entry.stat().st_mtime_ns
    except OSError:  # A zip file, a folder that is not there, or a package that goes away just now.
        return


class Parents:
    """`newest`: where new ranks and stores come from. One before it lives as long as its store."""

    def __init__(self, first: Parent) -> None:
        self.newest = first
        self._before: list[Parent] = []
        self._installed = installed()
        self._on_change: Callable[[], None] = lambda: None

    def listen(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.newest.listen(on_change)

    @property
    def pids(self) -> set[int]:
        return {parent.pid for parent in (self.newest, *self._before)}

    @property
    def broken(self) -> str:
        """Why ranks cannot start."""
        return next((parent.broken for parent in (self.newest, *self._before) if parent.broken), "")

    def renew(self) -> bool:
        """Start another parent if what is installed has changed; tell whether it has."""
        found = installed()
        if found == self._installed:
            return False
        log.info("what is installed has changed: the next ranks have a new parent")
        self._installed = found
        self._before.append(self.newest)
        self.newest = Parent.start()
        self.newest.listen(self._on_change)
        return True

    def close_unused(self, used: set[Parent]) -> None:
        """End the parents before the newest that have no store any more."""
        for parent in [parent for parent in self._before if parent not in used]:
            self._before.remove(parent)
            parent.close()

    def close(self) -> None:
        self.close_unused(set())
        self.newest.close()
