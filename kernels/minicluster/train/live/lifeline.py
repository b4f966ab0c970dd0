"""Notices that another lighthouse has taken the place of the one that this rank's call waits for.

Where the former's node is cut off, the connection to it stays open for up to 80 s. The new one does not
hear this rank, whose heartbeats go to the former: its status page lists whom it hears.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Callable

PATIENCE_S = 3.0
"""A quorum that takes longer has the lighthouse asked."""
_LOOK_S = 1.0


class Lifeline:
    """Follows the quorum under way. `on_cut()` is called from its thread."""

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
            time.sleep(_LOOK_S)
            waited_s = time.monotonic() - self._since
            if not self._asking.is_set() or waited_s < PATIENCE_S:
                continue
            if is_another(self._lighthouse, self._replica) and self._asking.is_set():
                self._since = time.monotonic()
                self._on_cut()


def is_another(lighthouse: str, replica: str) -> bool:
    """Ask the lighthouse whether it is another one; one that does not answer is no other."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{lighthouse}/status", timeout=_LOOK_S) as answer:
            page = answer.read().decode(errors="replace")
    except OSError:
        return False
    _, found, heartbeats = page.partition("<h2>Heartbeats</h2>")
    heard_s = re.findall(rf"{re.escape(replica)}:\S+: seen ([0-9.e-]+)s ago", heartbeats)
    return bool(found) and all(float(ago_s) > PATIENCE_S for ago_s in heard_s)
