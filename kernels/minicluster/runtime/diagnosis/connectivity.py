"""Whether an attempt's other tasks can be reached, before any rank waits for them in vain.

A machine that was away is back on the jobs' network only some time after its engine is. A rank that
calls it meanwhile tries again after ever longer times, so that all ranks stand still for minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection

_ONE_TRY_S = 1.0
_PAUSE_S = 0.2
_TELL_AFTER_S = 4.0


class ConnectivityCheck:
    """`unreached`: the addresses to tell the service of. changed: called when these are others."""

    def __init__(self, peers: Collection[str], changed: Callable[[], None]) -> None:
        self.peers = tuple(peers)
        """host:port of each; may change while they are being tried."""
        self.unreached: tuple[str, ...] = ()
        self._changed = changed

    async def reach_all(self) -> None:
        """Return when each of the peers was reached once."""
        loop = asyncio.get_running_loop()
        begun, met = loop.time(), set[str]()
        while missing := [peer for peer in self.peers if peer not in met]:
            found = await asyncio.gather(*map(_reach, missing))
            met |= {peer for peer, is_there in zip(missing, found, strict=True) if is_there}
            missing = [peer for peer in missing if peer not in met]
            if loop.time() - begun > _TELL_AFTER_S:
                self._tell(missing)
            if missing:
                await asyncio.sleep(_PAUSE_S)
        self._tell(())

    def _tell(self, missing: Collection[str]) -> None:
        if self.unreached != tuple(missing):
            self.unreached = tuple(missing)
            self._changed()


async def _reach(peer: str) -> bool:
    """Connect and leave: behind the address is the task's store, which bears with that."""
    host, _, port = peer.rpartition(":")
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ONE_TRY_S):
            _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        return True
    return False
