"""The end of a cell: what it began is waited for, as Python does at the end of a script."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing import process

_TELL_AFTER_S = 2.0
_LOOK_S = 0.5


def wait_for_the_rest(tell: Callable[[str], None]) -> None:
    """Wait for the cell's threads and processes that are no daemons.

    tell: is called with the name of what is waited for, when it takes some time.
    """
    if not _waited_for():
        return
    over = threading.Event()
    threading.Thread(target=_tell, args=(over, tell), daemon=True, name="minicluster-ending").start()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        for child in _children():
            child.join()
    finally:
        over.set()


def _waited_for() -> list[str]:
    main = threading.main_thread()
    threads = [f"thread {one.name}" for one in threading.enumerate() if one is not main and not one.daemon]
    return threads + [f"process {child.name}" for child in _children()]


def _children() -> list[process.BaseProcess]:
    """Return the processes that multiprocessing would join at exit. Asking it would reap them here."""
    return [child for child in list(process._children) if not child.daemon]  # type: ignore[attr-defined]


def _tell(over: threading.Event, tell: Callable[[str], None]) -> None:
    told = ""
    over.wait(_TELL_AFTER_S)
    while not over.is_set():
        first = next(iter(_waited_for()), "")
        if first != told:
            told = first
            tell(first)
        over.wait(_LOOK_S)
