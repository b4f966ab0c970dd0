"""Processes of a test: what they run, and their ends. Any of them may end while it is looked at."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from contextlib import suppress

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


def lives(process: psutil.Process) -> bool:
    """Whether a process is there, and more than a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def signal_all(processes: Iterable[psutil.Process], number: int = signal.SIGKILL) -> None:
    """Send a signal to each of them that is still there."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
