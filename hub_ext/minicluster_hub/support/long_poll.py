"""The polls that are held until there is something new, and how all of them end when the service does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from minicluster_hub.support.notifier import Subscription


class Holds:
    """The polls that are held now. Once released, no poll is held any more."""

    def __init__(self) -> None:
        self.released = False
        self._listeners: set[Subscription] = set()
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def add(self, subscription: Subscription) -> Iterator[None]:
        self._listeners.add(subscription)
        self._none.clear()
        try:
            yield
        finally:
            self._listeners.discard(subscription)
            if not self._listeners:
                self._none.set()

    async def release(self) -> None:
        """Wake all of them, and wait until they are answered."""
        self.released = True
        for subscription in self._listeners:
            subscription.hear(None)
        await self._none.wait()
