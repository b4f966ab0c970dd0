"""Long computations in Python, in a thread beside the event loop, which needs the interpreter, too."""

from __future__ import annotations

import time
from collections.abc import Callable

_WORK_S = 0.001


class Rests:
    """Call it again and again while you compute: it rests for as long as you have worked, in turns of 1 ms.

    Python has a thread that waits for the interpreter wait for 5 ms, and the loop waits so at each step of a
    request: without rests an upload during a forecast of 500 jobs took 0.3 s.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._began = clock()

    def __call__(self) -> None:
        worked_s = self._clock() - self._began
        if worked_s >= _WORK_S:
            self._sleep(worked_s)
            self._began = self._clock()
