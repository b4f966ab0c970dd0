"""How ranks are ended: signals that get harsher with time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass

from minicluster.wire import StopMode


@dataclass(frozen=True)
class Step:
    """A signal, and how long to wait for what it does."""

    signal: signal.Signals
    wait_s: float


# A cell has the first seconds to put its things in order. All of it, with what the service does before and
# after, has to fit into the 12 s within which a stopped job leaves nothing.
LADDERS: dict[StopMode, tuple[Step, ...]] = {
    StopMode.INTERRUPT: (Step(signal.SIGINT, 4.0), Step(signal.SIGTERM, 1.0), Step(signal.SIGKILL, 0.0)),
    StopMode.ABORT: (Step(signal.SIGTERM, 2.0), Step(signal.SIGKILL, 0.0)),
    StopMode.YIELD: (Step(signal.SIGKILL, 0.0),),
    StopMode.KILL: (Step(signal.SIGKILL, 0.0),),
}


async def descend(mode: StopMode, send: Callable[[signal.Signals], None]) -> None:
    """Send each signal of the mode in turn. Whoever sees the last rank end cancels this."""
    for step in LADDERS[mode]:
        send(step.signal)
        await asyncio.sleep(step.wait_s)
