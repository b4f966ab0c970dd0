"""Checks passwords, within limits of time, memory and processors for all callers together."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import TypeVar

from minicluster_hub.login.accounts_file import (
    LONGEST_PASSWORD,
    Account,
    PasswordFile,
    UserNameRefused,
    check_user_name,
)
from minicluster_hub.login.origin import Origin
from minicluster_hub.login.throttle import LoginThrottle, TooManyAttempts

T = TypeVar("T")


class WorkersBusy(Exception):
    """Too many calls wait, most of them from this origin."""


class FairWorkers:
    """Runs at most `at_once` calls in threads; waiting calls run in turn, one of each origin.

    When `longest_queue` calls wait, the origin with the most of them loses its newest call: so an origin
    that floods displaces only its own calls.
    """

    def __init__(self, at_once: int, longest_queue: int = 256) -> None:
        self._free = at_once
        self._longest_queue = longest_queue
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, origin: Hashable, call: Callable[[], T]) -> T:
        """Run a call in a thread and return its result. Raises WorkersBusy."""
        await self._enter(origin)
        try:
            return await asyncio.to_thread(call)
        finally:
            self._leave()

    async def _enter(self, origin: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        self._make_room(origin)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(origin, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave()
            raise

    def _make_room(self, origin: Hashable) -> None:
        if sum(map(len, self._waiting.values())) < self._longest_queue:
            return
        fullest = max(self._waiting, key=lambda known: len(self._waiting[known]))
        own = self._waiting.get(origin, ())
        if len(self._waiting[fullest]) <= len(own) + 1:
            raise WorkersBusy
        dropped = self._waiting[fullest].pop()
        if not dropped.done():
            dropped.set_exception(WorkersBusy())

    def _leave(self) -> None:
        """Give the thread to the next origin."""
        while self._waiting:
            origin, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[origin] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class LoginRefused(Exception):
    """The password was not checked; the message says when to try again."""


class LoginGate:
    """Checks passwords. A hash takes 16 MB and about 50 ms, so only a few run at once."""

    def __init__(
        self,
        accounts: PasswordFile,
        *,
        throttle: LoginThrottle | None = None,
        workers: FairWorkers | None = None,
        most_waiting: int = 500,
    ) -> None:
        self._accounts = accounts
        self._throttle = throttle or LoginThrottle()
        self._workers = workers or FairWorkers(max(1, (os.cpu_count() or 2) // 2))
        self._room = most_waiting

    async def check(self, name: str, password: str, origin: Origin) -> Account | None:
        """Return the user's entry if the password is right. Raises LoginRefused."""
        if len(password) > LONGEST_PASSWORD:
            return None
        key = (_counted_name(name), origin.key)
        await self._wait_turn(key)
        try:
            call = partial(self._accounts.verify, name, password)
            entry = await self._workers.run(origin.key, call)
        except WorkersBusy:
            raise LoginRefused("Too many people log in at the moment. Try again in a few seconds.") from None
        if entry is not None:
            self._throttle.succeeded(key)
        return entry

    async def _wait_turn(self, key: tuple[str, str]) -> None:
        try:
            wait_s = self._throttle.take_turn(key, time.monotonic())
        except TooManyAttempts as error:
            raise _too_many(error.retry_s) from None
        if not wait_s:
            return
        if not self._room:
            raise _too_many(wait_s)
        self._room -= 1
        try:
            await asyncio.sleep(wait_s)
        finally:
            self._room += 1


def _too_many(retry_s: float) -> LoginRefused:
    return LoginRefused(
        "Too many attempts to log in with this user name from your address. "
        f"Try again in {math.ceil(max(retry_s, 1))} s; a browser that logged in before need not wait."
    )


def _counted_name(name: str) -> str:
    """Return the name to count attempts by: "" for all impossible names, so that they take no memory."""
    try:
        return check_user_name(name)
    except UserNameRefused:
        return ""
