"""How long a user name waits after wrong passwords: pure, the caller brings the clock."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True)
class Failures:
    count: int
    next_try_at: float


class LoginDelays:
    """After a few free tries each further one must wait, twice as long each time.

    The wait ends at a minute, so that a stranger's guesses cannot lock a user out for long.
    """

    def __init__(self, *, free_tries: int = 4, longest_s: float = 60.0, names_kept: int = 10_000) -> None:
        self._free_tries = free_tries
        self._longest_s = longest_s
        self._names_kept = names_kept
        self._failures: OrderedDict[str, Failures] = OrderedDict()

    def wait_s(self, name: str, now: float) -> float:
        """Seconds until this name may try again; 0 when it may now."""
        failures = self._failures.get(name)
        return max(0.0, failures.next_try_at - now) if failures else 0.0

    def failed(self, name: str, now: float) -> None:
        """Count a wrong password."""
        before = self._failures.pop(name, Failures(0, now))
        count = before.count + 1
        exponent = min(count - self._free_tries, 10)
        delay_s = min(2.0**exponent, self._longest_s) if exponent >= 0 else 0.0
        self._failures[name] = Failures(count, now + delay_s)
        while len(self._failures) > self._names_kept:
            self._failures.popitem(last=False)

    def succeeded(self, name: str) -> None:
        """Forget a name's wrong passwords."""
        self._failures.pop(name, None)
