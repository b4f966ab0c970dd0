"""An event loop whose time passes only when there is nothing to do: hours of waiting take no time.

All else is asyncio's own, so what runs on it is the service as it is, with its timeouts and pauses.
"""

import asyncio
import selectors

TURNS_AT_ONCE = 2000


class NothingWillHappen(AssertionError):
    """Everything waits, and for nothing that will come."""


class TimeStandsStill(AssertionError):
    """Something is done again and again, and no time passes."""


class _NoWaiting(selectors.DefaultSelector):
    """Moves the loop's time instead of waiting."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.turns = 0

    def select(self, timeout=None):
        ready = super().select(0)
        self.turns = 0 if timeout else self.turns + 1
        if self.turns > TURNS_AT_ONCE:
            raise TimeStandsStill
        if ready:
            return ready
        if timeout is None:
            raise NothingWillHappen
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._no_waiting = _NoWaiting()
        super().__init__(self._no_waiting)

    def time(self):
        return self._no_waiting.now

    def stall(self, seconds):
        """Let time pass in which nothing on this loop gets its turn, as when a process is frozen."""
        self._no_waiting.now += seconds
