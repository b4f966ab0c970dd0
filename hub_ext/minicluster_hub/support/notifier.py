"""A tiny broadcast notification: those who wait learn that something changed, and look for themselves.

A ring carries a key and nothing else; what changed is read from the store or the disk, so a ring
may come too often without harm, and none is lost between two waits.

Keys rung by the reconciler's `changes`: a job's id (int) when what its owner sees of it changed,
`NODES` when a node or who holds its slots changed, `NOTICES` when there are some to send. Keys of the logs'
bell: a job's id; of the orders' bell: a task's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager

NODES = "nodes"
NOTICES = "notices"


class Subscription:
    """Collects the keys that rang since the last wait. Made by `Bell.listen`."""

    def __init__(self) -> None:
        self._rung: set[Hashable] = set()
        self._event = asyncio.Event()

    def hear(self, key: Hashable) -> None:
        """Remember that the key rang and wake who waits."""
        self._rung.add(key)
        self._event.set()

    async def wait(self, timeout_s: float | None) -> frozenset[Hashable]:
        """Return the keys that rang since the last wait, at once if there are some.

        The answer is empty when `timeout_s` passed without a ring; None waits for ever.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return frozenset()
        return self.take()

    def take(self) -> frozenset[Hashable]:
        """Return the keys that rang since the last wait or take, without waiting."""
        self._event.clear()
        rung, self._rung = frozenset(self._rung), set()
        return rung


class Notifier:
    """Rings for all listeners of a key, in the one event loop of the service."""

    def __init__(self) -> None:
        self._subscriptions: dict[Hashable | None, set[Subscription]] = {}
        self._first: list[Callable[[Hashable], None]] = []

    def call_first(self, hear: Callable[[Hashable], None]) -> None:
        """Call this at each ring, before anybody wakes, for good."""
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

        `into`: a listener of another bell, so that one wait hears both.
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
