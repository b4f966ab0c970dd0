"""mc.log: sends the training's metrics to the live plot and to the run's record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, cast

from minicluster.errors import MiniclusterError
from minicluster.train.calls import WrongCall, called_as
from minicluster.train.metrics import media, pending, sending
from minicluster.train.trials import running_trial
from minicluster.wire import METRIC_CHARS

_LIKE = 'mc.log(step=step, loss=loss) or mc.log({"loss": loss}, step=step)'
_EPOCH = "epoch"
_OVER_EPOCHS = "epoch/"
_MOST_LEVELS = 8
_AT_ONCE = 1000
"""Names in one record; more make several."""


class NotANumber(MiniclusterError):
    """A logged value cannot be plotted."""


@called_as(_LIKE)
def log(data: Mapping[str, Any] | None = None, /, step: float | None = None, **values: Any) -> None:
    """Send values to the notebook's panel: `mc.log(step=i, loss=loss)`, or `mc.log({"loss": loss}, step=i)`.

    step: the position on the plot's horizontal axis; None: the panel counts. values: numbers, or
    tensors and arrays with one element; a dict of them gives names with a slash, `train/loss`. Names that
    begin with `epoch/` are plotted over `epoch=`, the others over the step. mc.Image(...), mc.Histogram(...)
    and mc.Table(...) are values, too. A tensor on a GPU is copied as it is now and sent when the GPU has
    computed it: the step does not wait. Each call is kept. Outside of a job nothing happens. In a sweep, a
    pruned trial ends here, on all ranks at the same step. Raises NotANumber, NotShowable and WrongCall.
    """
    if data is not None and not (_is_mapping(type(data)) and all(isinstance(name, str) for name in data)):
        raise WrongCall(f"mc.log() takes names with numbers, not {_words(data)}.", f"Like this: {_LIKE}")
    named = {**data, **values} if data else values
    if any([_is_mapping(type(value)) for value in named.values()]):
        named = dict(_flat(named, ""))
    step = named.pop("step", None) if step is None else step
    if not named:
        raise NotANumber("mc.log() got no value.", f"Name each: {_LIKE}.")
    at_step = None if step is None else _number("step", step)
    _send(named, at_step)
    if trial := running_trial():
        trial.logged(named, at_step)


@cache
def _is_mapping(kind: type) -> bool:
    """Return whether values of a type are mappings. Asked for each value, it takes as long as the rest."""
    return issubclass(kind, Mapping)


def _flat(named: Mapping[Any, Any], before: str, level: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts: {"train": {"loss": 1}} is train/loss."""
    if level > _MOST_LEVELS:
        text = f"mc.log() takes at most {_MOST_LEVELS} dicts within each other; {before[:60]} has more."
        raise NotANumber(text, "Give the values names of their own.")
    for name, value in named.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}/", level + 1)
        else:
            yield path, value


def _send(named: Mapping[str, Any], step: float | None) -> None:
    values: dict[str, float | None] = {}
    on_gpu: dict[str, Any] = {}
    shown: dict[str, media.Logged] = {}
    for name, value in named.items():
        if not 0 < len(name) <= METRIC_CHARS:
            raise NotANumber(
                f"mc.log() takes names of 1 to {METRIC_CHARS} characters, not {name[:60]!r}.", ""
            )
        if type(value) is float:
            values[name] = value
        elif getattr(value, "is_cuda", False) and name != _EPOCH:
            values[name], on_gpu[name] = None, _one_element(name, value)
        elif isinstance(value, media.Logged):
            shown[name] = value
        else:
            values[name] = _number(name, value)
    readings = pending.read_later(on_gpu) if on_gpu else ()
    rank, at = sending.own_rank(), time.time()
    for position, part in _by_position(values, step):
        if readings or pending.queue.waiting:
            pending.add(pending.Entry(rank, at, position, part, readings))
        else:
            sending.write((rank, at, position, cast("dict[str, float]", part)))
    if shown and sending.in_job():
        epoch = values.get(_EPOCH)
        for name, value in shown.items():
            over_epochs = epoch is not None and name.startswith(_OVER_EPOCHS)
            media.send(name, value, rank, at, epoch if over_epochs else step)


def _by_position(
    values: dict[str, float | None], step: float | None
) -> Iterable[tuple[float | None, dict[str, float | None]]]:
    """Return values with their position, those over epochs apart from the others, _AT_ONCE at most."""
    if _EPOCH not in values and len(values) <= _AT_ONCE:
        return ((step, values),) if values else ()
    return _parts(values, step)


def _parts(
    values: dict[str, float | None], step: float | None
) -> Iterator[tuple[float | None, dict[str, float | None]]]:
    epoch = values.get(_EPOCH)
    groups = [(step, values)]
    if epoch is not None and any(name.startswith(_OVER_EPOCHS) for name in values):
        over_epochs = {name: value for name, value in values.items() if name.startswith(_OVER_EPOCHS)}
        others = {name: value for name, value in values.items() if name not in over_epochs}
        groups = [(step, others), (epoch, over_epochs)]
    for position, group in groups:
        names = list(group)
        for begin in range(0, len(names), _AT_ONCE):
            yield position, {name: group[name] for name in names[begin : begin + _AT_ONCE]}


def _number(name: str, value: Any) -> float:
    try:
        return float(value.item() if callable(getattr(value, "item", None)) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise _refused(name, value) from error


def _one_element(name: str, tensor: Any) -> Any:
    if tensor.numel() != 1 or tensor.is_complex():
        raise _refused(name, tensor)
    return tensor


def _refused(name: str, value: Any) -> NotANumber:
    return NotANumber(
        f"mc.log({name}=...) takes a number or a tensor of one element, not {_words(value)}.",
        "Reduce it first, for example with .mean(), or log mc.Histogram(...) of it.",
    )


def _words(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
