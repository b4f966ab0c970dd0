"""Breaks off an all-reduce that waits for a rank which no longer answers.

A rank that is killed ends its connections, which all see at once. One that is frozen, or whose cable
is out, ends nothing: after a moment of waiting the peers' managers are asked whether they are there.
A manager answers by itself, whatever its rank computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from torchft._torchft import ManagerClient

PATIENCE_S = 0.3
"""An operation that takes longer has its peers asked."""
ANSWER = timedelta(seconds=0.5)
"""More than a manager needs on a busy machine. One that is there all the same costs a step, no more."""
_LOOK_S = 0.1
_MOST_AT_ONCE = 16


class Watch:
    """Follows the operations under way. `on_silence(peer)` is called from its thread."""

    def __init__(self, peers: Callable[[], dict[int, str]], on_silence: Callable[[int], None]) -> None:
        self._peers = peers
        self._on_silence = on_silence
        self._since: dict[int, float] = {}
        self._lock = threading.Lock()
        self._busy = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="minicluster-watch").start()

    def begun(self, number: int) -> None:
        with self._lock:
            self._since[number] = time.monotonic()
            self._busy.set()

    def ended(self, number: int) -> None:
        with self._lock:
            self._since.pop(number, None)
            if not self._since:
                self._busy.clear()

    def _run(self) -> None:
        while True:
            self._busy.wait()
            time.sleep(_LOOK_S)
            with self._lock:
                oldest = min(self._since.values(), default=time.monotonic())
            if time.monotonic() - oldest > PATIENCE_S:
                silent = first_silent(self._peers().items())
                if silent is not None and self._busy.is_set():
                    self._on_silence(silent)


def first_silent(peers: Iterable[tuple[int, str]]) -> int | None:
    """Ask all peers at once; return one that does not answer, None when all do."""
    numbered = list(peers)
    if not numbered:
        return None
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(numbered))) as pool:
        answers = pool.map(_answers, (address for _, address in numbered))
        return next((peer for (peer, _), there in zip(numbered, answers, strict=True) if not there), None)


def _answers(address: str) -> bool:
    try:
        ManagerClient(address, connect_timeout=ANSWER)._checkpoint_metadata(0, timeout=ANSWER)
    except (TimeoutError, RuntimeError, OSError) as error:
        # A manager that is there but has nothing to tell says so.
        return "rank not found" in str(error)
    return True
