"""How long a try at a password has to wait: pure, the caller brings the clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


class TooManyTries(Exception):
    """Too many tries wait already; `retry_s` is when one of them is through."""

    def __init__(self, retry_s: float) -> None:
        super().__init__(f"too many tries; the next one in {retry_s:.0f} s")
        self.retry_s = retry_s


@dataclass
class _Tries:
    tries: int = 0
    next_at: float = 0.0


class LoginThrottle:
    """Tries at one name from one place stand in a line: after a few free ones, each waits for its turn.

    A try counts as wrong from the moment it comes, so that tries at the same time are no way around.
    The right password from there waits for at most `longest_wait_s`; from elsewhere not at all.
    """

    def __init__(
        self,
        *,
        free_tries: int = 4,
        longest_delay_s: float = 10.0,
        longest_wait_s: float = 30.0,
        lines_kept: int = 10_000,
        forget_s: float = 3600.0,
    ) -> None:
        self._free_tries = free_tries
        self._longest_delay_s = longest_delay_s
        self._longest_wait_s = longest_wait_s
        self._lines_kept = lines_kept
        self._forget_s = forget_s
        self._lines: OrderedDict[Hashable, _Tries] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lines)

    def take_turn(self, key: Hashable, now: float) -> float:
        """Count a try and return the seconds until its turn. Raises TooManyTries."""
        line = self._line(key, now)
        turn = max(now, line.next_at)
        if turn - now > self._longest_wait_s:
            raise TooManyTries(turn - now - self._longest_wait_s)
        line.tries += 1
        line.next_at = turn + self._delay_s(line.tries)
        return turn - now

    def succeeded(self, key: Hashable) -> None:
        """Forget a line's tries: the last one was right."""
        self._lines.pop(key, None)

    def _line(self, key: Hashable, now: float) -> _Tries:
        line = self._lines.pop(key, None)
        if line is None or now - line.next_at > self._forget_s:
            line = _Tries()
        self._lines[key] = line
        if len(self._lines) > self._lines_kept:
            self._lines.popitem(last=False)
        return line

    def _delay_s(self, tries: int) -> float:
        beyond = tries - self._free_tries
        return min(2.0 ** min(beyond, 10), self._longest_delay_s) if beyond >= 0 else 0.0
