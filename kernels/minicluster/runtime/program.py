"""What the agent and the keeper have in common as programs: where they log, and how they are ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable


def log_to_stderr() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)


async def until_told(work: Awaitable[None]) -> None:
    """Wait for the work to be over, or end it by SIGTERM or SIGINT."""
    running = asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel if running else sys.exit)
    with contextlib.suppress(asyncio.CancelledError):
        await work
