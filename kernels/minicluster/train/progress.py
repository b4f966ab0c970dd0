"""mc.progress: sends a loop's progress to the panel's bar."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from minicluster.train import place
from minicluster.train.calls import WrongCall, called_as
from minicluster.train.metrics.sending import send
from minicluster.train.whole import Loop, whole
from minicluster.wire import Progress, Record

T = TypeVar("T")

SPACING_S = 0.05


@called_as("for batch in mc.progress(loader):")
def progress(iterable: Iterable[T], total: float | None = None, label: str = "") -> Iterator[T]:
    """Yield from `iterable` and show progress in the notebook's panel: `for batch in mc.progress(loader):`.

    total: the number of items, if `iterable` has no length. label: the bar's name.
    At most 20 messages a second are sent, and always the last one. From the outermost loop with a bar
    the scheduler also predicts the job's end: `for epoch in mc.progress(range(20)):`.
    """
    if not isinstance(iterable, Iterable) and not hasattr(iterable, "__getitem__"):
        text = f"mc.progress() takes an iterable, not {type(iterable).__name__}."
        raise WrongCall(text, "Like this: for batch in mc.progress(loader):")
    if total is None:
        with suppress(TypeError):
            total = len(iterable)  # type: ignore[arg-type]
    return _reported(iterable, total, label)


def _reported(iterable: Iterable[T], total: float | None, label: str) -> Iterator[T]:
    loop, sent_at = whole().begin(iterable, total), time.monotonic()
    _send(loop, label)
    try:
        for item in iterable:
            yield item
            loop.done += 1
            if time.monotonic() - sent_at >= SPACING_S:
                _send(loop, label)
                sent_at = time.monotonic()
    finally:
        _send(loop, label)
        whole().end(loop)


def _send(loop: Loop, label: str) -> None:
    rank, at, all_loops, progress = place.rank(), time.time(), whole(), None
    if rank == 0:
        progress = Progress(
            done=all_loops.done,
            total=all_loops.total,
            steps=all_loops.steps,
            gradient_bytes=all_loops.gradient_bytes,
        )
    bar = {"done": loop.done, "total": loop.total, "label": label}
    send(Record(kind="progress", rank=rank, at=at, whole=progress, **bar))
