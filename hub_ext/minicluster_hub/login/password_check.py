"""Checks passwords, within limits on time, memory and processors for all callers together."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
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

T = TypeVar("T")


class TooManyAttempts(Exception):
    """Too many attempts wait already. retry_s: seconds until another one may wait."""

    def __init__(self, retry_s: float) -> None:
        super().__init__(f"too many attempts; the next one in {retry_s:.0f} s")
        self.retry_s = retry_s


@dataclass
class _Attempts:
    count: int = 0
    next_at: float = 0.0


class LoginThrottle:
    """After a few free attempts, attempts on one user name from one origin wait for each other.

    An attempt counts as wrong from its start, so simultaneous attempts gain nothing. At an origin with wrong
    attempts, the right password waits for at most `longest_wait_s`; at other origins it does not wait.
    """

    def __init__(
        self,
        *,
        free_attempts: int = 4,
        longest_delay_s: float = 10.0,
        longest_wait_s: float = 30.0,
        most_keys: int = 10_000,
        forget_s: float = 3600.0,
    ) -> None:
        self._free_attempts = free_attempts
        self._longest_delay_s = longest_delay_s
        self._longest_wait_s = longest_wait_s
        self._most_keys = most_keys
        self._forget_s = forget_s
        self._attempts: OrderedDict[Hashable, _Attempts] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    def schedule(self, key: Hashable, now: float) -> float:
        """Count an attempt and return the seconds until its turn. Raises TooManyAttempts."""
        attempts = self._entry(key, now)
        turn = max(now, attempts.next_at)
        if turn - now > self._longest_wait_s:
            raise TooManyAttempts(turn - now - self._longest_wait_s)
        attempts.count += 1
        attempts.next_at = turn + self._delay_s(attempts.count)
        return turn - now

    def succeeded(self, key: Hashable) -> None:
        """Forget a key's attempts: the last one was right."""
        self._attempts.pop(key, None)

    def _entry(self, key: Hashable, now: float) -> _Attempts:
        attempts = self._attempts.pop(key, None)
        if attempts is None or now - attempts.next_at > self._forget_s:
            attempts = _Attempts()
        self._attempts[key] = attempts
        if len(self._attempts) > self._most_keys:
            self._attempts.popitem(last=False)
        return attempts

    def _delay_s(self, count: int) -> float:
        beyond = count - self._free_attempts
        return min(2.0 ** min(beyond, 10), self._longest_delay_s) if beyond >= 0 else 0.0


class WorkersBusy(Exception):
    """Too many calls wait, most of them from this origin."""


class FairWorkers:
    """Runs at most `at_once` calls in threads; waiting calls run in turn, one of each origin.

    When `longest_queue` calls wait, the origin with the most waiting calls loses its newest one: so a flood
    displaces only calls of its own origin.
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
            wait_s = self._throttle.schedule(key, time.monotonic())
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
    """Return the name for counting attempts: "" for all impossible names, so that they take no memory."""
    try:
        return check_user_name(name)
    except UserNameRefused:
        return ""
