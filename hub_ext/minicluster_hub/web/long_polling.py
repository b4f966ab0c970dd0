"""Polls of agents and keepers, held until there is something new.

Each is answered: after a while at the latest, and with what there is when the service ends, so that whoever
asked goes on to the next service at once. One whose asker has gone is held no longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from minicluster_hub.support.notifier import Notifier, Subscription
from minicluster_hub.web.base import JobServiceHandler


class Versioned(Protocol):
    """What is polled for."""

    @property
    def version(self) -> str: ...


V = TypeVar("V", bound=Versioned)


class HeldHandler(JobServiceHandler):
    """Base: see the module."""

    _gone = False
    _waker: Subscription | None = None

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._gone = True
        if self._waker is not None:
            self._waker.hear(None)

    async def held(self, look: Callable[[], V], notifier: Notifier, key: Hashable) -> V:
        """Return what `look` finds once its version is not the one that the asker has, or a while later.

        The bell rings with this key when there may be something new.
        """
        have, loop, holds = (
            self.get_query_argument("have", ""),
            asyncio.get_running_loop(),
            self.context.holds,
        )
        until = loop.time() + self.context.limits.orders_hold_s
        async with notifier.listen(key) as waker:
            self._waker = waker
            with holds.add(waker):
                while (found := look()).version == have and loop.time() < until:
                    if self._gone or holds.released:
                        break
                    await waker.wait(until - loop.time())
        return found
