"""An event loop whose clock advances only when it is idle, so that hours of waiting take no time.

All else is asyncio's own, so the service runs unchanged, with its timeouts and pauses.
"""

import asyncio
import selectors

TURNS_AT_ONCE = 2000


class NothingWillHappen(AssertionError):
    """All tasks wait, and no timer is set."""


class TimeStandsStill(AssertionError):
    """The loop is busy without end while no time passes."""


class _NoWaiting(selectors.DefaultSelector):
    """Advances the loop's clock instead of waiting."""

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
        """Advance the clock without running anything, as if the process was frozen."""
        self._no_waiting.now += seconds
