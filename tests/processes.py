"""What processes of a test run."""

from __future__ import annotations

import psutil


def runs(process: psutil.Process, word: str) -> bool:
    """Whether a word is part of a process's command line; one that ends meanwhile runs nothing."""
    try:
        return any(word in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False
