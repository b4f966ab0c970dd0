"""Long polling: requests of agents, held until there is something new.

A request is answered after `orders_hold_s` at the latest. When the service ends, it answers all held requests
at once, so that agents go to the next service. If a client disconnects, its request is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from minicluster_hub.support.notifier import Notifier, Subscription
from minicluster_hub.web.base import ServiceHandler


class Versioned(Protocol):
    """The answer to a poll."""

    @property
    def version(self) -> str: ...


V = TypeVar("V", bound=Versioned)


class HeldHandler(ServiceHandler):
    """Base of handlers that hold polls; see the module."""

    _gone = False
    _subscription: Subscription | None = None

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._gone = True
        if self._subscription is not None:
            self._subscription.notify(None)

    async def held(self, read: Callable[[], V], notifier: Notifier, key: Hashable) -> V:
        """Return the result of `read` once its version differs from the client's, or the time is over.

        notifier, key: notified when there may be something new.
        """
        have = self.get_query_argument("have", "")
        loop, polls = asyncio.get_running_loop(), self.context.held_polls
        until = loop.time() + self.context.limits.orders_hold_s
        async with notifier.listen(key) as subscription:
            self._subscription = subscription
            with polls.add(subscription):
                while (found := read()).version == have and loop.time() < until:
                    if self._gone or polls.released:
                        break
                    await subscription.wait(until - loop.time())
        return found
