"""The rights that HAProxy knows: which token may ask which model, for some seconds without a question."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

from minicluster_hub.serving.front.config import FRESH, OLD

FRESH_S, ALLOWED_S = 10.0, 15.0
"""HAProxy takes a token for ALLOWED_S at most. After FRESH_S some of its requests ask anew, so that the right
of a token in use is renewed before it ends. The hub's own answer is cached for 45 s.
"""
_MOST = 10_000


class Rights:
    """changed: called with a right when HAProxy must be told what `of` returns now. For one event loop."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._values: dict[str, str] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def of(self, right: str) -> str | None:
        """Return FRESH or OLD; None: there is no such right."""
        return self._values.get(right)

    def renew(self, authorization: str, key: str) -> None:
        """Let requests with this header ask a model for ALLOWED_S from now on. key: of the model."""
        right = f"{hashlib.sha256(authorization.encode()).hexdigest().upper()}:{key}"
        is_full = len(self._values) >= _MOST and right not in self._values
        if not is_full and self._values.get(right) != FRESH:
            self._set(right, FRESH)
            self._after(FRESH_S, self._age, right)

    def forget(self, key: str) -> list[str]:
        """End all rights to ask a model; return them. HAProxy has to be told by the caller."""
        ended = [right for right in self._values if right.partition(":")[2] == key]
        for right in ended:
            del self._values[right]
            self._timers.pop(right).cancel()
        return ended

    def forget_all(self) -> None:
        """End all rights; HAProxy is gone."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._values.clear()

    def _age(self, right: str) -> None:
        self._set(right, OLD)
        self._after(ALLOWED_S - FRESH_S, self._expire, right)

    def _expire(self, right: str) -> None:
        del self._values[right], self._timers[right]
        self._changed(right)

    def _set(self, right: str, value: str) -> None:
        self._values[right] = value
        self._changed(right)

    def _after(self, seconds: float, call: Callable[[str], None], right: str) -> None:
        timer = self._timers.get(right)
        if timer is not None:
            timer.cancel()
        self._timers[right] = asyncio.get_running_loop().call_later(seconds, call, right)
