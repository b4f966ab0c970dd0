"""mc.log: numbers of the training, for the live plot."""

from __future__ import annotations

import time
from typing import Any

from minicluster.errors import MiniclusterError
from minicluster.wire import Record

from . import place, records


class NotANumber(MiniclusterError):
    """Something was logged that has no place on a plot."""


def log(*, step: float | None = None, **values: Any) -> None:
    """Send numbers to the notebook's panel: `mc.log(step=i, loss=loss)`.

    step: where on the plot's horizontal axis; left out, the panel counts. values: numbers, or
    tensors and arrays with one element. Each call is kept. Outside of a job nothing happens.
    Raises NotANumber.
    """
    if not values:
        raise NotANumber("mc.log() got no value.", "Name each: mc.log(step=step, loss=loss).")
    numbers = {name: _number(name, value) for name, value in values.items()}
    at_step = None if step is None else _number("step", step)
    records.send(Record(kind="log", rank=place.rank(), at=time.time(), step=at_step, values=numbers))


def _number(name: str, value: Any) -> float:
    try:
        return float(value.item() if _has_item(value) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotANumber(
            f"mc.log({name}=...) takes a number or a tensor of one element, not {_words(value)}.",
            "Reduce it first, with .mean() say.",
        ) from error


def _has_item(value: Any) -> bool:
    return callable(getattr(value, "item", None))


def _words(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
