"""Waits for expected conditions.

The limit is generous, since tests run in parallel on a busy machine: it only detects what never happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

WITHIN_S = 60.0


def until(seen: Callable[[], Any], within_s: float = WITHIN_S) -> Any:
    """Wait until `seen()` is true; return it."""
    end = time.monotonic() + within_s
    while not (found := seen()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


async def eventually(seen: Callable[[], Any], within_s: float = WITHIN_S) -> Any:
    """Do the same without blocking the event loop."""
    async with asyncio.timeout(within_s):
        while not (found := seen()):
            await asyncio.sleep(0.002)
    return found
