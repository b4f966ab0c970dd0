"""A small broadcast: subscribers learn that something changed, and read for themselves what.

A notification carries a key and nothing else, so a needless one does no harm, and none is lost between waits.

Keys of the status cache's `changes`: a job's id (int) when what its owner sees of it changed,
`NODES` when a node or who holds its slots changed, `NOTICES` when there are some to send. Keys of the logs'
notifier: a job's id; of the orders' notifier: a task's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

NODES = "nodes"
NOTICES = "notices"


class Subscription:
    """Collects the keys that were notified since the last wait. Made by `Notifier.listen`."""

    def __init__(self) -> None:
        self._keys: set[Hashable] = set()
        self._event = asyncio.Event()

    def hear(self, key: Hashable) -> None:
        """Keep the key and wake whoever waits."""
        self._keys.add(key)
        self._event.set()

    async def wait(self, timeout_s: float | None) -> frozenset[Hashable]:
        """Return the keys notified since the last wait, at once if there are some.

        The answer is empty when `timeout_s` passed without a notification; None waits for ever.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return frozenset()
        return self.take()

    def take(self) -> frozenset[Hashable]:
        """Return the keys notified since the last wait or take, without waiting."""
        self._event.clear()
        keys, self._keys = frozenset(self._keys), set()
        return keys


class Notifier:
    """Notifies all subscribers of a key, in the one event loop of the service."""

    def __init__(self) -> None:
        self._subscriptions: dict[Hashable | None, set[Subscription]] = {}
        self._first: list[Callable[[Hashable], None]] = []

    def call_first(self, hear: Callable[[Hashable], None]) -> None:
        """Call this at each notification, before any subscriber wakes."""
        self._first.append(hear)

    def notify(self, key: Hashable) -> None:
        """Wake everyone who listens to this key, or to all keys."""
        for hear in self._first:
            hear(key)
        for place in (key, None):
            for subscription in self._subscriptions.get(place, ()):
                subscription.hear(key)

    @asynccontextmanager
    async def listen(self, *keys: Hashable, into: Subscription | None = None) -> AsyncIterator[Subscription]:
        """Listen to these keys (none given: to all), from now to the end of the block.

        `into`: a subscription of another notifier, so that one wait covers both.
        """
        subscription = into if into is not None else Subscription()
        places: tuple[Hashable | None, ...] = keys or (None,)
        for place in places:
            self._subscriptions.setdefault(place, set()).add(subscription)
        try:
            yield subscription
        finally:
            for place in places:
                self._leave(place, subscription)

    def _leave(self, place: Hashable | None, subscription: Subscription) -> None:
        remaining = self._subscriptions.get(place, set())
        remaining.discard(subscription)
        if not remaining:
            self._subscriptions.pop(place, None)
