"""Notifies subscribers that something has changed; they read the change themselves.

A notification carries only a key. So a needless one does no harm, and a subscription collects the keys that
come between two waits.

Keys of the status cache's `changes`: a job's id (int) when the owner's view of the job changed, `NODES` when
a node or the holder of its slots changed, `NOTICES` when there are notices to send. Keys of the logs'
notifier: a job's id. Keys of the orders' notifier: a task's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

NODES = "nodes"
NOTICES = "notices"


class Subscription:
    """Collects the keys notified since the last wait. `Notifier.listen` makes it."""

    def __init__(self) -> None:
        self._keys: set[Hashable] = set()
        self._event = asyncio.Event()

    def notify(self, key: Hashable) -> None:
        """Add a key and wake the waiting task."""
        self._keys.add(key)
        self._event.set()

    async def wait(self, timeout_s: float | None) -> frozenset[Hashable]:
        """Return the keys notified since the last wait, at once if there are some.

        The result is empty if no notification came within `timeout_s`; None waits for ever.
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
    """Notifies all subscribers of a key. For use in one event loop."""

    def __init__(self) -> None:
        self._subscriptions: dict[Hashable | None, set[Subscription]] = {}
        self._first: list[Callable[[Hashable], None]] = []

    def call_first(self, notify: Callable[[Hashable], None]) -> None:
        """Call a function at each notification, before any subscriber wakes."""
        self._first.append(notify)

    def notify(self, key: Hashable) -> None:
        """Wake the subscribers of this key, and those of all keys."""
        for notify in self._first:
            notify(key)
        for entry in (key, None):
            for subscription in self._subscriptions.get(entry, ()):
                subscription.notify(key)

    @asynccontextmanager
    async def listen(self, *keys: Hashable, into: Subscription | None = None) -> AsyncIterator[Subscription]:
        """Subscribe to these keys (no keys: to all) until the end of the block.

        into: a subscription to another notifier, so that one wait covers both.
        """
        subscription = into if into is not None else Subscription()
        entries: tuple[Hashable | None, ...] = keys or (None,)
        for entry in entries:
            self._subscriptions.setdefault(entry, set()).add(subscription)
        try:
            yield subscription
        finally:
            for entry in entries:
                remaining = self._subscriptions.get(entry, set())
                remaining.discard(subscription)
                if not remaining:
                    self._subscriptions.pop(entry, None)
