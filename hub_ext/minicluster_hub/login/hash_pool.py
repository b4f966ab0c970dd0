"""A few threads that hash passwords, shared fairly between the places that tries come from."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T")


class WorkersBusy(Exception):
    """More work waits than is taken, most of it from the same place."""


class FairWorkers:
    """Runs at most `at_once` calls in threads; each place in turn has one of its waiting calls run.

    When `longest_queue` calls wait, the place with the most of them loses its newest: who floods
    pushes out only itself.
    """

    def __init__(self, at_once: int, longest_queue: int = 256) -> None:
        self._free = at_once
        self._longest_queue = longest_queue
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, place: Hashable, call: Callable[[], T]) -> T:
        """Return what the call returns. Raises WorkersBusy."""
        await self._enter(place)
        try:
            return await asyncio.to_thread(call)
        finally:
            self._leave()

    async def _enter(self, place: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        self._make_room(place)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(place, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave()
            raise

    def _make_room(self, place: Hashable) -> None:
        if sum(map(len, self._waiting.values())) < self._longest_queue:
            return
        fullest = max(self._waiting, key=lambda known: len(self._waiting[known]))
        own = self._waiting.get(place, ())
        if len(self._waiting[fullest]) <= len(own) + 1:
            raise WorkersBusy
        dropped = self._waiting[fullest].pop()
        if not dropped.done():
            dropped.set_exception(WorkersBusy())

    def _leave(self) -> None:
        """Give the thread to the place whose turn it is."""
        while self._waiting:
            place, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[place] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
