"""The one way to check a password: limited in time, memory and processors, whoever asks."""

from __future__ import annotations

import asyncio
import math
import os
import time
from functools import partial

from minicluster_hub.login.accounts_file import (
    LONGEST_PASSWORD,
    Entry,
    PasswordFile,
    UserNameRefused,
    check_user_name,
)
from minicluster_hub.login.hash_pool import FairWorkers, WorkersBusy
from minicluster_hub.login.origin import Origin
from minicluster_hub.login.throttle import LoginThrottle, TooManyTries


class LoginRefused(Exception):
    """The password was not looked at; the message says when to try again."""


class LoginGate:
    """Checks passwords. A hash takes 16 MB and some 50 ms, so only a few are made at once."""

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

    async def check(self, name: str, password: str, origin: Origin) -> Entry | None:
        """Return the user's entry if the password is right. Raises LoginRefused."""
        if len(password) > LONGEST_PASSWORD:
            return None
        line = (_known_form(name), origin.key)
        await self._wait_turn(line)
        try:
            call = partial(self._accounts.verify, name, password)
            entry = await self._workers.run(origin.key, call)
        except WorkersBusy:
            raise LoginRefused("Too many people log in at the moment. Try again in a few seconds.") from None
        if entry is not None:
            self._throttle.succeeded(line)
        return entry

    async def _wait_turn(self, line: tuple[str, str]) -> None:
        try:
            wait_s = self._throttle.take_turn(line, time.monotonic())
        except TooManyTries as error:
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
        "Too many tries at this user name from your address. "
        f"Try again in {math.ceil(max(retry_s, 1))} s; a browser that logged in before need not wait."
    )


def _known_form(name: str) -> str:
    """All names that nobody can have are one, so that they take no room."""
    try:
        return check_user_name(name)
    except UserNameRefused:
        return ""
