"""Follows the steps of a virtual rank: measures its memory, then times each way to communicate in turns."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from minicluster.dry_run.comms import TIMED, ModelsCommunication
from minicluster.dry_run.group import VirtualGroup
from minicluster.dry_run.measured import Collective, Epoch, Step
from minicluster.dry_run.memory import LiveTensors, ProcessMemory, sizes_of
from minicluster.train.loaders import ElasticSampler

WARM_STEPS = 3
"""Steps before times count: the first ones make buckets, optimizer states and kernels' workspaces."""
_OF_TURN = 3
"""Steps of a turn. The first of them is left out: what the change of communication costs is in it."""
_LEAST_OF_TURN = 2
"""The same when the time for it is over, in the first round: something of each way is known then."""
_MOST_ROUNDS = 5


class StepWatch:
    """Sees each step of the first optimizer. `done` is called once all is known; it does not return.

    began: called after the first step. traced: counts tensors; then two steps are enough. timing_s: about how
    long steps are timed; 0: one is made.
    """

    def __init__(
        self,
        group: VirtualGroup | None,
        communication: ModelsCommunication,
        began: Callable[[], None],
        done: Callable[[], None],
        traced: LiveTensors | None = None,
        timing_s: float = 0.0,
    ) -> None:
        self.steps = 0
        self.first_step_s = 0.0
        self.times: dict[str, list[Step]] = {}
        self.memory = ProcessMemory()
        self.growth_bytes = 0
        self.optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.loader: Any = None
        self._first: Callable[[], Any] = lambda: None
        self._group, self._communication = group, communication
        self._first_made, self._done = began, done
        self._traced, self._timing_s = traced, timing_s
        self._turns: Iterator[str] = iter(())
        self._turn, self._in_turn = "", 0
        self._until = 0.0
        self._began = time.perf_counter()

    def install(self) -> None:
        """Watch this process from now on."""
        register_optimizer_step_post_hook(lambda optimizer, _args, _named: self._stepped(optimizer))
        _BaseDataLoaderIter.__next__ = self._noting(_BaseDataLoaderIter.__next__)  # pyright: ignore

    def _stepped(self, optimizer: Optimizer) -> None:
        if torch.compiler.is_compiling():
            return
        self.optimizers.add(optimizer)
        first = self._first()
        if first is None:
            self._first = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._count(time.perf_counter())

    def _count(self, now: float) -> None:
        self.steps += 1
        step = Step(seconds=now - self._began, collectives=self._collectives())
        if self.steps == 1:
            self.first_step_s = step.seconds
            self._first_made()
        if self._is_over(step):
            self.growth_bytes = self.growth_bytes or self.memory.growth_bytes
            self._done()
        if self._traced is not None:
            self._traced.begin_step()
        if self._group is not None:
            self._group.collectives.clear()
        self._began = time.perf_counter()

    def _is_over(self, step: Step) -> bool:
        """Take a step; return whether it was the last one that is needed."""
        if self._traced is not None:
            return self.steps == 2
        if not self._timing_s:
            return True
        if self.steps < WARM_STEPS:
            return False
        if self.steps == WARM_STEPS:
            # Each way to communicate has memory of its own: this is the peak of the cell's own.
            self.growth_bytes = self.memory.growth_bytes
            self._turns = self._all_turns()
            self._until = time.perf_counter() + self._timing_s
        else:
            self._in_turn += 1
            if self._in_turn > 1:
                self.times.setdefault(self._turn, []).append(step)
        return self._is_last()

    def _is_last(self) -> bool:
        late = time.perf_counter() > self._until
        if self._turn and self._in_turn < (_LEAST_OF_TURN if late else _OF_TURN):
            return False
        self._turn, self._in_turn = next(self._turns, ""), 0
        if late and self._turn in self.times:
            return True
        if self._turn in TIMED:
            self._communication.switch(self._turn)
        return not self._turn

    def _all_turns(self) -> Iterator[str]:
        changeable = self._communication.distributed and not self._communication.own_hook
        for _ in range(_MOST_ROUNDS):
            yield from TIMED if changeable else ("own",)

    def _collectives(self) -> tuple[Collective, ...]:
        found = self._group.collectives if self._group is not None else []
        return tuple(
            Collective(at_s=at - self._began, size_bytes=size, blocks=blocks) for at, size, blocks in found
        )

    def _noting(self, get: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @wraps(get)
        def noted(batches: Any) -> Any:
            if not self.steps:
                self.loader = batches
            return get(batches)

        return noted

    @property
    def epoch(self) -> Epoch | None:
        """Return the length of the loader that the first step drew from; None if it has none."""
        try:
            return _epoch_of(self.loader) if self.loader is not None else None
        except TypeError:
            return None  # Nobody knows the length of an iterable data set.

    @property
    def sizes(self) -> Any:
        return sizes_of(self.optimizers)


def _epoch_of(batches: Any) -> Epoch:
    """batches: a loader's iterator."""
    indices = batches._index_sampler
    sampler = indices.sampler if isinstance(indices, BatchSampler) else indices
    shared = isinstance(sampler, ElasticSampler | DistributedSampler)
    size = getattr(indices, "batch_size", None)
    samples = len(sampler.order) if isinstance(sampler, ElasticSampler) else len(batches._dataset)
    return Epoch(batches=len(indices), samples=samples, batch_size=size, shared=shared)
