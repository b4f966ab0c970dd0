"""Reads processes' command lines. A process may end at any time."""

from __future__ import annotations

import psutil


def runs(process: psutil.Process, word: str) -> bool:
    """Whether a process's command line contains a text; False if the process has ended."""
    try:
        return any(word in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def has_word(process: psutil.Process, word: str) -> bool:
    """Whether a process's command line has this argument; False if the process has ended."""
    try:
        return word in process.cmdline()
    except psutil.NoSuchProcess:
        return False
