"""mc.log: sends the training's metrics to the live plot."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from typing import Any

from minicluster.errors import MiniclusterError
from minicluster.train import place
from minicluster.train.calls import WrongCall, called_as
from minicluster.wire import Record

_LIKE = 'mc.log(step=step, loss=loss) or mc.log({"loss": loss}, step=step)'


class NotANumber(MiniclusterError):
    """A logged value cannot be plotted."""


@called_as(_LIKE)
def log(data: Mapping[str, Any] | None = None, /, step: float | None = None, **values: Any) -> None:
    """Send numbers to the notebook's panel: `mc.log(step=i, loss=loss)`, or `mc.log({"loss": loss}, step=i)`.

    step: the position on the plot's horizontal axis; None: the panel counts. values: numbers, or
    tensors and arrays with one element. Each call is kept. Outside of a job nothing happens.
    Raises NotANumber and WrongCall.
    """
    if data is not None and not (isinstance(data, Mapping) and all(isinstance(name, str) for name in data)):
        raise WrongCall(f"mc.log() takes names with numbers, not {_words(data)}.", f"Like this: {_LIKE}")
    named = {**(data or {}), **values}
    step = named.pop("step", None) if step is None else step
    if not named:
        raise NotANumber("mc.log() got no value.", f"Name each: {_LIKE}.")
    numbers = {name: _number(name, value) for name, value in named.items()}
    at_step = None if step is None else _number("step", step)
    send(Record(kind="log", rank=place.rank(), at=time.time(), step=at_step, values=numbers))


def _number(name: str, value: Any) -> float:
    try:
        return float(value.item() if callable(getattr(value, "item", None)) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotANumber(
            f"mc.log({name}=...) takes a number or a tensor of one element, not {_words(value)}.",
            "Reduce it first, for example with .mean().",
        ) from error


def _words(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")


# A rank writes each record as one JSON line into a pipe that the agent reads.


_RECORDS_FD = "MINICLUSTER_RECORDS_FD"


def send(record: Record) -> None:
    """Write a record; outside of a job, do nothing."""
    fd = int(os.environ.get(_RECORDS_FD) or -1)
    try:
        # A program started by the cell inherits the variable, but not the pipe.
        if fd < 0 or not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return
    except OSError:
        return
    line = memoryview(record.model_dump_json(exclude_defaults=True).encode() + b"\n")
    while line:
        line = line[os.write(fd, line) :]
