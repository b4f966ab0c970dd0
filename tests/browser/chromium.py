"""Starts Debian's chromium without background requests to other hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

# Without these options, the browser contacts its vendor's hosts at every start.
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MISSING = "chromium is not installed (Debian: apt-get install chromium)"


def program() -> str | None:
    return shutil.which("chromium")


@contextmanager
def browser(*arguments: str) -> Iterator[Browser]:
    """Run the browser with further arguments. Meanwhile, no other event loop can run in this thread."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program(), args=[*QUIET, *arguments])
        yield running
        running.close()
