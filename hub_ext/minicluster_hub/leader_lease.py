"""An engine's lease as the leader election wants it: it asks in a thread, and the lease lives in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from minicluster_hub.engines.base import EngineError
from minicluster_hub.engines.capabilities import LeaderLease
from minicluster_hub.store import NotLeading, StoreUnavailable
from minicluster_hub.store.leadership import LeadershipRow

_Answer = TypeVar("_Answer")
_CLOSE_S = 5.0


class LeaseLeadership:
    """Has the methods of store.leadership.Leadership that the leader election calls. They block."""

    def __init__(self, lease: LeaderLease, holder: str, loop: asyncio.AbstractEventLoop) -> None:
        self.lease_s = lease.lease_s
        self._lease = lease
        self._holder = holder
        self._loop = loop

    def read(self) -> LeadershipRow:
        """Return who leads. Raises StoreUnavailable."""
        holder, age_s = self._ask(self._lease.read())
        return LeadershipRow(0, holder, age_s)

    def take(self) -> bool:
        """Become the leader if nobody else is. Raises StoreUnavailable."""
        return self._ask(self._lease.take())

    def renew(self) -> None:
        """Keep the lease. Raises NotLeading when another service leads, StoreUnavailable."""
        if not self._ask(self._lease.renew()):
            raise NotLeading(self._holder)

    def close(self) -> None:
        """Release the lead, so that another service takes over at once; if that fails, the lease ends."""
        with suppress(StoreUnavailable, TimeoutError):
            self._ask(self._lease.close(), _CLOSE_S)

    def _ask(self, question: Coroutine[Any, Any, _Answer], within_s: float | None = None) -> _Answer:
        answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        try:
            return answer.result(within_s)
        except EngineError as error:
            raise StoreUnavailable(f"who leads is not known: {error}") from error
