"""Detects faults that end no connection in a fault-tolerant job: a frozen rank, a replaced lighthouse.

A killed rank's connections end, which its peers see at once. Those of a frozen or disconnected rank do not.
So after a short wait, the peers' managers are probed. A manager answers even while its rank computes.

If a lighthouse's node is cut off, the connection to it stays open for up to 80 s. Meanwhile, this rank's
heartbeats go to the old lighthouse, so it is not among the ranks on the new one's status page.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from torchft._torchft import ManagerClient

PEER_PATIENCE_S = 0.3
"""If an operation takes longer, its peers are probed."""
_ANSWER_TIMEOUT = timedelta(seconds=0.5)
"""More than a manager needs on a busy machine. A false alarm costs only one step."""
_PEER_LOOK_S = 0.1
_MOST_AT_ONCE = 16

QUORUM_PATIENCE_S = 3.0
"""If a quorum takes longer, the lighthouse is probed."""
_QUORUM_LOOK_S = 1.0


class PeerWatchdog:
    """Watches running operations. Its thread calls `on_silence(peer)`."""

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
            time.sleep(_PEER_LOOK_S)
            with self._lock:
                oldest = min(self._since.values(), default=time.monotonic())
            if time.monotonic() - oldest > PEER_PATIENCE_S:
                silent = first_silent(self._peers().items())
                if silent is not None and self._busy.is_set():
                    self._on_silence(silent)


def first_silent(peers: Iterable[tuple[int, str]]) -> int | None:
    """Probe all peers at once; return one that does not answer, None if all do."""
    numbered = list(peers)
    if not numbered:
        return None
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(numbered))) as pool:
        answers = pool.map(_answers, (address for _, address in numbered))
        return next((peer for (peer, _), there in zip(numbered, answers, strict=True) if not there), None)


def _answers(address: str) -> bool:
    try:
        ManagerClient(address, connect_timeout=_ANSWER_TIMEOUT)._checkpoint_metadata(
            0, timeout=_ANSWER_TIMEOUT
        )
    except (TimeoutError, RuntimeError, OSError) as error:
        # A running manager that has nothing to send answers this.
        return "rank not found" in str(error)
    return True


class LighthouseWatchdog:
    """Watches the running quorum call. Its thread calls `on_cut()`."""

    def __init__(self, lighthouse: str, replica: str, on_cut: Callable[[], None]) -> None:
        self._lighthouse = lighthouse
        self._replica = replica
        self._on_cut = on_cut
        self._since = 0.0
        self._asking = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="minicluster-lifeline").start()

    def __enter__(self) -> None:
        self._since = time.monotonic()
        self._asking.set()

    def __exit__(self, *_: object) -> None:
        self._asking.clear()

    def _run(self) -> None:
        while True:
            self._asking.wait()
            time.sleep(_QUORUM_LOOK_S)
            waited_s = time.monotonic() - self._since
            if not self._asking.is_set() or waited_s < QUORUM_PATIENCE_S:
                continue
            if is_another(self._lighthouse, self._replica) and self._asking.is_set():
                self._since = time.monotonic()
                self._on_cut()


def is_another(lighthouse: str, replica: str) -> bool:
    """Whether the lighthouse at this address is a new one; False if it does not answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{lighthouse}/status", timeout=_QUORUM_LOOK_S) as answer:
            page = answer.read().decode(errors="replace")
    except OSError:
        return False
    _, found, heartbeats = page.partition("<h2>Heartbeats</h2>")
    heard_s = re.findall(rf"{re.escape(replica)}:\S+: seen ([0-9.e-]+)s ago", heartbeats)
    return bool(found) and all(float(ago_s) > QUORUM_PATIENCE_S for ago_s in heard_s)
