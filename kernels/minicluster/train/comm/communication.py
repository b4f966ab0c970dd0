"""One model's communication: which strategy it follows, from the first step to the last."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from minicluster.train.comm.gradients import Bucket, ExactGradients, GradFuture, Strategy
from minicluster.train.comm.strategies import strategy
from minicluster.train.comm.weights import LocalSteps
from minicluster.wire.comm import METHODS, CommMethod

if TYPE_CHECKING:
    from minicluster.train.balance.weights import SampleWeights


class GroupPeers:
    """The ranks of a DistributedDataParallel, whose group may be another one in a session's next cell.

    model: a weak reference to it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def count(self) -> int:
        return self._model.process_group.size()

    @property
    def place(self) -> int:
        return self._model.process_group.rank()

    def sum(self, tensor: torch.Tensor) -> GradFuture:
        work: Any = dist.all_reduce(tensor, group=self._model.process_group, async_op=True)
        # Of a hook's future, torch takes what Python has set.
        return work.get_future().then(lambda summed: summed.value()[0])


class Communication:
    """Follows a method: plain averaging for its first `start` steps, then its strategy.

    model: the DistributedDataParallel. weights: with `--balance`, those of the ranks' gradients.
    """

    def __init__(self, model: Any, method: CommMethod) -> None:
        # What is known of a model must not keep it alive.
        self.model: Any = weakref.proxy(model)
        self.peers = GroupPeers(self.model)
        self.steps = 0
        self.weights: SampleWeights | None = None
        self.strategy: Strategy = ExactGradients(self.peers)
        self._method = method
        self._start = method.whole("start") if "start" in METHODS[method.name] else 0
        self._broadcasts = model.broadcast_buffers

    def begin_forward(self, inputs: Any, *, averages: bool, trains: bool) -> None:
        """Called before each forward pass with gradients.

        averages: whether its backward pass averages them. trains: whether the model is in training mode.
        """
        if self.weights:
            self.weights.pause()
        if averages and trains:
            self.before_forward()
        if self.weights:
            self.weights.begin_forward(inputs, self.strategy, averages=averages)

    def before_forward(self) -> None:
        """Called before each forward pass that a backward pass with communication follows."""
        if self.steps == self._start:
            self.follow(self._method)
        if isinstance(self.strategy, LocalSteps):
            self.strategy.before_forward()

    def average(self, bucket: Bucket) -> GradFuture:
        """Average a bucket of gradients: DistributedDataParallel's hook."""
        weights, strategy = self.weights, self.strategy
        future = weights.average(bucket, strategy) if weights else strategy.average(bucket)
        self.steps += bucket.is_last()
        return future

    def follow(self, method: CommMethod) -> None:
        """Change over to a method."""
        self.strategy = strategy(method, self.model.module, self.peers, lambda: self.model.process_group)
        # Ranks that train apart have buffers of their own until they average.
        self.model.broadcast_buffers = self._broadcasts and not isinstance(self.strategy, LocalSteps)

    def follow_from_now(self, method: CommMethod) -> None:
        """Change over to a method at once, whatever the number of steps."""
        self._start = -1
        self.follow(method)

    def settle(self) -> bool:
        """Make the weights equal on all ranks, if they are apart; all ranks have to call this."""
        return isinstance(self.strategy, LocalSteps) and self.strategy.settle()
