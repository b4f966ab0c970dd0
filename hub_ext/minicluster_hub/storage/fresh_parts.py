"""Large values that notebooks upload for a cell: their owners' idle tasks fetch them at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from minicluster.wire.limits import PARTS_OF_JOB

_FRESH_S = 60.0
"""A job is submitted once the service has all of its parts: nobody waits for an older one."""


class FreshParts:
    """What each user is uploading, and has uploaded in the last minute. After a restart there is nothing."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._expected: dict[str, dict[str, None]] = {}
        self._came_at: dict[str, dict[str, float]] = {}
        self._monotonic = monotonic

    def expect(self, owner: str, parts: Iterable[str]) -> None:
        """Take what a notebook is going to upload."""
        expected = self._expected.setdefault(owner, {})
        expected.update(dict.fromkeys(parts))
        _keep_newest(expected)

    def came(self, owner: str, sha256: str) -> bool:
        """Take what was uploaded; return whether it is a part that was expected."""
        expected = self._expected.get(owner, {})
        if sha256 not in expected:
            return False
        del expected[sha256]
        if not expected:
            del self._expected[owner]
        self._came_at = {name: parts for name in self._came_at if (parts := self._fresh(name))}
        parts = self._came_at.setdefault(owner, {})
        parts[sha256] = self._monotonic()
        _keep_newest(parts)
        return True

    def of(self, owner: str) -> tuple[str, ...]:
        """Return what a user has uploaded in the last minute."""
        return tuple(self._fresh(owner))

    def _fresh(self, owner: str) -> dict[str, float]:
        now = self._monotonic()
        parts = self._came_at.get(owner, {})
        return {sha256: came_at for sha256, came_at in parts.items() if now - came_at < _FRESH_S}


def _keep_newest(parts: dict[str, Any]) -> None:
    while len(parts) > PARTS_OF_JOB:
        del parts[next(iter(parts))]
