"""Leader election among job services on one database: take the lead when it is free, then keep it.

A service leads as long as it renews its lease in time, by its own clock. The clock also runs while the
service is frozen. So the service knows at once afterwards that its lease may be over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from minicluster_hub.store import StoreUnavailable
from minicluster_hub.store.leadership import Leadership

RENEW_S = 1.0
LOOK_S = 0.25
_Answer = TypeVar("_Answer")


class LeaderElection:
    """`leads`: whether this service acts now. `leader_url`: the other leader's URL, "" if none is known."""

    def __init__(
        self,
        leadership: Leadership | None,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.leader_url = ""
        self.moved = asyncio.Event()
        """Set, and replaced by a new event, whenever the leader changes."""
        self.stands_by = asyncio.Event()
        """Set once this service has found another one leading."""
        self._leadership = leadership
        self._log = log
        self._clock = clock
        self._lease_until = -math.inf
        self._ready = False
        # The database may block. One thread, since the leadership has one session.
        self._thread = ThreadPoolExecutor(1, "leadership")

    @property
    def leads(self) -> bool:
        return self._ready and self._clock() < self._lease_until

    async def take(self) -> bool:
        """Become the leader unless another service leads; return whether this service leads."""
        if self._leadership is None:
            self._lease_until = math.inf
            return True
        took = await self._try(self._take)
        if took:
            self._see("")
        else:
            self.stands_by.set()
        return took

    async def wait_for_lead(self) -> None:
        """Wait until this service leads."""
        while not await self.take():  # noqa: ASYNC110 - another process holds it and sets no event here
            await asyncio.sleep(LOOK_S)

    def begin(self) -> None:
        """Note that the first observation is made: from now on requests can be answered."""
        self._ready = True

    async def keep_lead(self) -> None:
        """Renew the lease until cancelled. Raises NotLeading."""
        if self._leadership is None:
            await asyncio.get_running_loop().create_future()
        while True:
            renewed = await self._try(self._renew)
            await asyncio.sleep(RENEW_S if renewed else LOOK_S)

    async def close(self) -> None:
        """Stop leading, so that another service can take over."""
        self._lease_until = -math.inf
        if self._leadership is not None:
            await self._in_thread(self._leadership.close)
        self._thread.shutdown(wait=False)

    # --- asking the database ------------------------------------------------------------------

    async def _try(self, ask: Callable[[Leadership], bool]) -> bool:
        """Ask the database. If the answer is yes, the lease runs from the moment before the question."""
        leadership = self._leadership
        assert leadership is not None  # noqa: S101
        asked_at = self._clock()
        try:
            leads = await self._in_thread(lambda: ask(leadership))
        except StoreUnavailable as error:
            self._log.warning("the database did not say who leads; trying again: %s", error)
            return False
        if leads:
            self._lease_until = asked_at + leadership.lease_s
        return leads

    def _take(self, leadership: Leadership) -> bool:
        if leadership.take():
            return True
        row = leadership.read()
        self._loop.call_soon_threadsafe(self._see, "" if row.age_s > leadership.lease_s else row.holder)
        return False

    def _renew(self, leadership: Leadership) -> bool:
        leadership.renew()
        return True

    def _see(self, leader_url: str) -> None:
        if leader_url != self.leader_url:
            self._log.info("%s", f"standing by: {leader_url} leads" if leader_url else "nobody else leads")
            self.leader_url = leader_url
            self.moved.set()
            self.moved = asyncio.Event()

    async def _in_thread(self, call: Callable[[], _Answer]) -> _Answer:
        self._loop = asyncio.get_running_loop()
        return await self._loop.run_in_executor(self._thread, call)
