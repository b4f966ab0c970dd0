"""Where the time of a rank's steps goes: counters that are always on, and cost a microsecond a step.

A step ends with the optimizer's. Waiting for data is the time in DataLoaders' iterators. Waiting for other
ranks is what DistributedDataParallel measures of itself: its all-reduce as far as the backward pass does not
hide it; on a GPU it measures every hundredth step. Other ways to communicate (FSDP, collectives of the cell)
count as computing.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any

from minicluster.train.metrics import sending
from minicluster.wire import Record, StepTimes

EVERY_S = 2.0
_CHANGED = (AttributeError, RuntimeError, TypeError)
"""What another torch than those known may raise: a training goes on without these figures."""


class StepClock:
    """Counts, and sends a record after the first step that ends EVERY_S after the last one."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._optimizer: Callable[[], Any] = lambda: None
        self._models: list[Callable[[], Any]] = []
        self._began: float | None = None
        self._steps = 0
        self._data_s = 0.0
        self._waits_s: dict[int, float] = {}

    def waited_for_data(self, seconds: float) -> None:
        self._data_s += seconds

    def follow(self, model: Any) -> None:
        """Count the all-reduces of a DistributedDataParallel."""
        with suppress(*_CHANGED):
            if model.device_type == "cpu":
                model._set_ddp_runtime_logging_sample_rate(1)
        self._models = [known for known in self._models if known() is not None]
        self._models.append(weakref.ref(model))

    def stepped(self, optimizer: Any) -> None:
        """Count a step. With several optimizers, those of the first that lives count."""
        first = self._optimizer()
        if first is None:
            self._optimizer = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        now = time.perf_counter()
        if self._began is None:
            self._begin(now)
            return
        self._steps += 1
        if now - self._began >= EVERY_S:
            self._send(now - self._began)
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._began, self._steps, self._data_s = now, 0, 0.0

    def _send(self, seconds: float) -> None:
        if os.getpid() != self._pid:  # A process that the cell forked trains on its own.
            return
        data = min(seconds, self._data_s)
        communication = min(seconds - data, self._communication_s())
        times = StepTimes(steps=self._steps, seconds=seconds, data=data, communication=communication)
        sending.send(Record(kind="speed", rank=sending.own_rank(), at=time.time(), speed=times))

    def _communication_s(self) -> float:
        """Return for how long all-reduces held up the steps since the last record."""
        found = 0.0
        for model in filter(None, (known() for known in self._models)):
            with suppress(*_CHANGED):
                found += self._waited_s(model)
        return found

    def _waited_s(self, model: Any) -> float:
        measured = model._get_ddp_logging_data()
        if model.device_type != "cpu":
            return _exposed_s(measured, "") * self._steps
        # A mean over all steps, of which each is measured.
        before_s = self._waits_s.get(id(model), 0.0)
        now_s = self._waits_s[id(model)] = _exposed_s(measured, "avg_") * int(measured.get("iteration", 0))
        return max(0.0, now_s - before_s)


def _exposed_s(measured: Mapping[str, Any], kind: str) -> float:
    """Return how long the all-reduce of a step goes on after its backward pass."""
    hidden_ns = measured.get(f"{kind}backward_compute_comm_overlap_time", 0)
    return max(0.0, (measured.get(f"{kind}backward_comm_time", 0) - hidden_ns) / 1e9)


watchers: list[Callable[[Any], None]] = []
"""Called with the optimizer after each of its steps, by the thread that trains."""


def install() -> None:
    """Count in this process from now on."""
    from torch.compiler import is_compiling
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    clock = StepClock()

    def stepped(optimizer: Any, _args: Any, _named: Any) -> None:
        if not is_compiling():
            clock.stepped(optimizer)
            for watcher in tuple(watchers):
                watcher(optimizer)

    register_optimizer_step_post_hook(stepped)
    _BaseDataLoaderIter.__next__ = _timed(_BaseDataLoaderIter.__next__, clock)  # pyright: ignore
    DistributedDataParallel.__init__ = _followed(DistributedDataParallel.__init__, clock)


def _timed(get: Callable[[Any], Any], clock: StepClock) -> Callable[[Any], Any]:
    @wraps(get)
    def timed(loader: Any) -> Any:
        began = time.perf_counter()
        try:
            return get(loader)
        finally:
            clock.waited_for_data(time.perf_counter() - began)

    return timed


def _followed(make: Callable[..., None], clock: StepClock) -> Callable[..., None]:
    @wraps(make)
    def made(model: Any, *args: Any, **named: Any) -> None:
        make(model, *args, **named)
        clock.follow(model)

    return made
