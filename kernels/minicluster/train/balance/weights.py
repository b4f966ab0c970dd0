"""Makes an average over the ranks one over the samples, whatever shares the ranks have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from minicluster.train.balance.steps import steps
from minicluster.train.comm.gradients import Bucket, GradFuture, Peers, Strategy
from minicluster.train.comm.weights import LocalSteps


class SampleWeights:
    """Weighs the gradients of one model: each rank's counts by its part of the batch's samples.

    model: the DistributedDataParallel.
    """

    def __init__(self, model: Any, peers: Peers) -> None:
        self._model = model
        self._peers = peers
        self._factor = 1.0
        self._accumulates = False

    def pause(self) -> None:
        """Do not count the time until the forward pass begins: ranks may wait for each other."""
        steps().watch.stop()

    def begin_forward(self, inputs: Any, strategy: Strategy, *, averages: bool) -> None:
        """Take the weight of the batch on which a forward pass begins.

        averages: False if its gradients are accumulated, in a `no_sync()`.
        """
        portion = steps().begin_forward(inputs, self._peers.count)
        # Strategies divide by the number of ranks.
        factor = portion.part * self._peers.count if portion else 1.0
        if self._accumulates and factor != self._factor and not isinstance(strategy, LocalSteps):
            self._rescale(self._factor / factor)
        self._factor = factor
        self._accumulates = self._accumulates or not averages

    def average(self, bucket: Bucket, strategy: Strategy) -> GradFuture:
        """Average a bucket by a strategy."""
        last = bucket.is_last()
        if isinstance(strategy, LocalSteps):
            if last:
                strategy.weigh(self._factor)
        elif self._factor != 1.0:
            bucket.buffer().mul_(self._factor)
        if not last:
            return strategy.average(bucket)
        device = bucket.buffer().device
        steps().watch.stop()
        future = strategy.average(bucket)
        self._accumulates = False
        steps().averaged(self._peers, device)
        return future

    @torch.no_grad()
    def _rescale(self, ratio: float) -> None:
        """Change the gradients that wait for their average, which will be multiplied by another factor."""
        for weight in self._model.module.parameters():
            if weight.grad is not None:
                weight.grad.mul_(ratio)


@contextmanager
def waiting() -> Iterator[None]:
    """Do not count what is done in a `with` block as computing: it waits for other ranks."""
    watch = steps().watch
    running = watch.running
    watch.stop()
    yield
    if running:
        watch.start()


def install() -> None:
    """Count the steps of optimizers as computing; do not count how long models wait for rank 0's buffers."""
    kind: Any = DistributedDataParallel
    kind._sync_buffers = _uncounted(kind._sync_buffers)
    register_optimizer_step_pre_hook(_begin_optimizer)
    register_optimizer_step_post_hook(_end_optimizer)


def _begin_optimizer(*_: Any) -> None:
    if steps().portion:
        steps().watch.start()


def _end_optimizer(*_: Any) -> None:
    steps().watch.stop()


def _uncounted(function: Callable[..., None]) -> Callable[..., None]:
    @wraps(function)
    def uncounted(*args: Any, **named: Any) -> None:
        with waiting():
            function(*args, **named)

    return uncounted
