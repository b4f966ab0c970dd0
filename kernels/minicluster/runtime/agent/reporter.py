"""When to report: at once when a state changes, soon when output flows, each second anyway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from minicluster.runtime.agent.client import AgentClient, Backoff, ServiceAway, ServiceRefused
from minicluster.wire import ReportAnswer, TaskReport

HEARTBEAT_S = 1.0
SPACING_S = 0.05

log = logging.getLogger(__name__)


class Reporter:
    """Sends what `snapshot` returns, over and over, and hands the answers to `take`."""

    def __init__(
        self,
        client: AgentClient,
        snapshot: Callable[[], TaskReport],
        take: Callable[[TaskReport, ReportAnswer], None],
    ) -> None:
        self._client = client
        self._snapshot = snapshot
        self._take = take
        self._due = asyncio.Event()
        self._urgent = asyncio.Event()
        self._sent_at = 0.0

    def state_changed(self) -> None:
        """Have a report sent at once."""
        self._urgent.set()
        self._due.set()

    def output_came(self) -> None:
        """Have a report sent soon. Cheap: each read of a pipe calls it."""
        self._due.set()

    async def run(self) -> None:
        """Report until cancelled. Raises TaskOver."""
        backoff = Backoff()
        while True:
            await self._wait()
            report = self._snapshot()
            try:
                answer = await self._client.report(report)
            except (ServiceAway, ServiceRefused) as error:
                log.warning("%s", error.message)
                await backoff.wait()
                self._due.set()
                continue
            backoff.reset()
            self._take(report, answer)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        await _set_before(self._due, self._sent_at + HEARTBEAT_S)
        await _set_before(self._urgent, self._sent_at + SPACING_S)
        self._due.clear()
        self._urgent.clear()
        self._sent_at = loop.time()


async def _set_before(event: asyncio.Event, deadline: float) -> None:
    """Wait for an event, but not beyond a time of the loop's clock."""
    # Not wait_for(): before Python 3.12 it can swallow a cancellation.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await event.wait()
