"""Scalars and pictures that the cell writes for TensorBoard show live in its run, too.

The writers themselves pass on what they are given: tensorboard's, which torch's SummaryWriter, Lightning and
transformers use, and tensorboardX's. Their files have it only minutes later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from minicluster.train.metrics import media, pending, sending
from minicluster.train.metrics.media import Image, NotShowable
from minicluster.wire import METRIC_CHARS

MODULES = ("tensorboard.summary.writer.event_file_writer", "tensorboardX.event_file_writer")


class Folders:
    """The writers' folders. The first has no part in names; one within it or beside it has its own."""

    def __init__(self) -> None:
        self._first: Path | None = None

    def prefix(self, folder: str) -> str:
        """Return what stands before the names of a writer: "" or "validation/"."""
        path = Path(os.path.abspath(folder))  # noqa: PTH100 - resolve() asks the disk
        if self._first is None or self._first == path:
            self._first = path
            return ""
        relative = path.relative_to(self._first) if path.is_relative_to(self._first) else Path(path.name)
        return f"{relative.as_posix()}/"


def follow(module: ModuleType, folders: Folders) -> None:
    """Have the event writer of a module send what it writes."""
    writer = module.EventFileWriter
    writer.__init__ = _placed(writer.__init__, folders)
    writer.add_event = _shown(writer.add_event)


def _placed(make: Callable[..., None], folders: Folders) -> Callable[..., None]:
    @wraps(make)
    def made(self: Any, logdir: Any, *args: Any, **named: Any) -> None:
        make(self, logdir, *args, **named)
        self._minicluster_prefix = folders.prefix(str(logdir))

    return made


def _shown(add: Callable[..., None]) -> Callable[..., None]:
    broken: list[Exception] = []

    @wraps(add)
    def added(self: Any, event: Any) -> None:
        add(self, event)
        if broken:
            return
        try:
            show(event, getattr(self, "_minicluster_prefix", ""))
        except (AttributeError, TypeError, ValueError) as error:  # Another form than those known.
            broken.append(error)
            print(f"What is written for TensorBoard is not shown in the run: {error!r}", file=sys.stderr)  # noqa: T201

    return added


def show(event: Any, prefix: str) -> None:
    """Send the scalars and pictures of an event."""
    rank, at, step = sending.own_rank(), float(event.wall_time), float(event.step)
    scalars: dict[str, float | None] = {}
    for value in event.summary.value:
        name = f"{prefix}{value.tag}"[:METRIC_CHARS]
        if not value.tag:
            continue
        scalars.update((name, number) for number in _scalar(value))
        if value.HasField("image") and sending.in_job():
            with suppress(NotShowable):
                media.send(name, Image(value.image.encoded_image_string), rank, at, step)
    if scalars:
        pending.add(pending.Entry(rank, at, step, scalars))


def _scalar(value: Any) -> Iterator[float]:
    """Yield the number of a summary value, in the old form or the new one; nothing if it is no scalar."""
    if value.HasField("simple_value"):
        yield float(value.simple_value)
    elif value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars":
        yield from map(float, (*value.tensor.float_val, *value.tensor.double_val)[:1])
