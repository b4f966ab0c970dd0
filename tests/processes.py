"""What a process runs. Any of them may end while it is looked at."""

from __future__ import annotations

import psutil


def runs(process: psutil.Process, word: str) -> bool:
    """Whether a word is part of a process's command line; one that ends meanwhile runs nothing."""
    try:
        return any(word in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def has_word(process: psutil.Process, word: str) -> bool:
    """Whether a whole word is on a process's command line; one that ends meanwhile has none."""
    try:
        return word in process.cmdline()
    except psutil.NoSuchProcess:
        return False
