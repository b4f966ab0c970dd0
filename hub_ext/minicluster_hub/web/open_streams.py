"""The open event streams of users and held polls of tasks: how many, and how many bytes wait to be sent."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from minicluster_hub.support.notifier import Subscription
from minicluster_hub.web.errors import too_many


class PendingTooMuch(Exception):
    """One user's readers together are too slow: too many bytes wait to be sent to them."""


_REST_FACTOR = 4
"""A user's streams together rest this many times as long as the event loop worked for them."""
_AT_ONCE_S, _MOST_REST_S = 1.0, 5.0
"""The first second of a rest is skipped, so streams with little data do not wait. 5 s is the longest rest."""


class OpenStreams:
    """The open streams and polls of one service, by user or task."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: Counter[Hashable] = Counter()
        self._pending: Counter[Hashable] = Counter()
        self._rest_until: dict[Hashable, float] = {}
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    @contextmanager
    def one_more(self, key: Hashable, most: int, what: str) -> Iterator[None]:
        """Count one more. Raises ApiError (429) for the new one: if an old one were closed, two readers would
        close each other in turn."""
        if self._open[key] >= most:
            message = f"{most} {what} are open already"
            raise too_many("too_many_streams", message, "close some pages or panels, or wait", wait_s=5.0)
        with _counted(self._open, key, 1):
            yield

    @contextmanager
    def sending(self, key: Hashable, size_bytes: int, most_bytes: int) -> Iterator[None]:
        """Count bytes that are being sent. Raises PendingTooMuch, but never for the only piece."""
        pending = self._pending[key]
        if pending and pending + size_bytes > most_bytes:
            raise PendingTooMuch
        with _counted(self._pending, key, size_bytes):
            yield

    def worked(self, key: Hashable, seconds: float) -> None:
        """Count the seconds that the event loop worked for one of a user's streams."""
        now = self._clock()
        rest_until = max(now, self._rest_until.get(key, 0.0)) + _REST_FACTOR * seconds
        self._rest_until[key] = min(rest_until, now + _AT_ONCE_S + _MOST_REST_S)

    async def turn(self, key: Hashable) -> None:
        """Wait until a user's streams have rested. They wait one after the other: hundreds that wake at once
        would block the loop."""
        lock = self._locks.get(key)
        if lock is None and not self.rest_s(key):
            return
        lock = lock or self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            await asyncio.sleep(self.rest_s(key))

    def rest_s(self, key: Hashable) -> float:
        """Return how many seconds all streams of a user still rest."""
        left_s = self._rest_until.get(key, 0.0) - self._clock()
        if left_s <= 0.0:
            self._rest_until.pop(key, None)
        return max(0.0, left_s - _AT_ONCE_S)


class HeldPolls:
    """The polls that the service holds now. After `release` it holds no more."""

    def __init__(self) -> None:
        self.released = False
        self._subscriptions: set[Subscription] = set()
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def add(self, subscription: Subscription) -> Iterator[None]:
        self._subscriptions.add(subscription)
        self._none.clear()
        try:
            yield
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions:
                self._none.set()

    async def release(self) -> None:
        """Wake all of them, and wait until they are answered."""
        self.released = True
        for subscription in self._subscriptions:
            subscription.notify(None)
        await self._none.wait()


@contextmanager
def _counted(counts: Counter[Hashable], key: Hashable, number: int) -> Iterator[None]:
    counts[key] += number
    try:
        yield
    finally:
        counts[key] -= number
        if not counts[key]:
            del counts[key]
