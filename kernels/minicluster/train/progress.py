"""mc.progress: how far a loop is, for the panel's bar."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from minicluster.wire import Record

from . import place, records

T = TypeVar("T")

SPACING_S = 0.05


def progress(iterable: Iterable[T], total: float | None = None, label: str = "") -> Iterator[T]:
    """Yield from `iterable` and tell the notebook's panel how far it is: `for batch in mc.progress(loader):`.

    total: how many there will be, if `iterable` has no length. label: what the bar is called.
    At most 20 messages each second are sent, the last one always.
    """
    size = _length(iterable) if total is None else total
    return _told(iterable, size, label)


def _told(iterable: Iterable[T], total: float | None, label: str) -> Iterator[T]:
    done, sent_at = 0, time.monotonic()
    _send(0, total, label)
    try:
        for item in iterable:
            yield item
            done += 1
            if time.monotonic() - sent_at >= SPACING_S:
                _send(done, total, label)
                sent_at = time.monotonic()
    finally:
        _send(done, total, label)


def _send(done: float, total: float | None, label: str) -> None:
    records.send(
        Record(kind="progress", rank=place.rank(), at=time.time(), done=done, total=total, label=label)
    )


def _length(iterable: Iterable[object]) -> float | None:
    try:
        return len(iterable)  # type: ignore[arg-type]
    except TypeError:
        return None
