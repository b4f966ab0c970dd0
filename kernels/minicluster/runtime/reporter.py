"""When to report: at once when a state changes, soon when output flows, each second anyway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minicluster.wire import ReportAnswer, TaskReport

from .link import Backoff, Link, ServiceAway, ServiceRefused

HEARTBEAT_S = 1.0
SPACING_S = 0.05

log = logging.getLogger(__name__)


class Reporter:
    """Sends what `snapshot` returns, over and over, and hands the answers to `take`."""

    def __init__(
        self,
        link: Link,
        snapshot: Callable[[], TaskReport],
        take: Callable[[TaskReport, ReportAnswer], None],
    ) -> None:
        self._link = link
        self._snapshot = snapshot
        self._take = take
        self._due = asyncio.Event()
        self._sent_at = 0.0
        self._told: object = None

    def wake(self) -> None:
        """Have a report sent soon. Cheap, so that each read of a pipe may call it."""
        self._due.set()

    async def run(self) -> None:
        """Report until cancelled. Raises TaskOver."""
        backoff = Backoff()
        while True:
            await self._wait()
            report = self._snapshot()
            try:
                answer = await self._link.report(report)
            except (ServiceAway, ServiceRefused) as error:
                log.warning("%s", error.message)
                await asyncio.sleep(backoff.next_s())
                self._due.set()
                continue
            backoff.reset()
            self._take(report, answer)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(self._due.wait(), max(0.0, self._sent_at + HEARTBEAT_S - loop.time()))
        except TimeoutError:
            pass
        # The first report after some quiet goes at once; a flood shares one each 50 ms.
        await asyncio.sleep(max(0.0, self._sent_at + SPACING_S - loop.time()))
        self._due.clear()
        self._sent_at = loop.time()
