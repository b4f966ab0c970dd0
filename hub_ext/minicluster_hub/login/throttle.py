"""How long a login attempt has to wait; pure: the caller passes the time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


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

    An attempt counts as wrong from its start, so simultaneous attempts gain nothing. The right password waits
    for at most `longest_wait_s` at an origin with wrong attempts, and not at all at another one.
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

    def take_turn(self, key: Hashable, now: float) -> float:
        """Count an attempt and return the seconds until its turn. Raises TooManyAttempts."""
        attempts = self._of(key, now)
        turn = max(now, attempts.next_at)
        if turn - now > self._longest_wait_s:
            raise TooManyAttempts(turn - now - self._longest_wait_s)
        attempts.count += 1
        attempts.next_at = turn + self._delay_s(attempts.count)
        return turn - now

    def succeeded(self, key: Hashable) -> None:
        """Forget a key's attempts: the last one was right."""
        self._attempts.pop(key, None)

    def _of(self, key: Hashable, now: float) -> _Attempts:
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
