"""Which batch this process trains on, how long it computes for it, and with which weight it counts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from minicluster.errors import MiniclusterError
from minicluster.train import place
from minicluster.train.balance.balancer import Balancer
from minicluster.train.balance.shares import Portion
from minicluster.train.balance.stopwatch import Stopwatch
from minicluster.train.comm.gradients import Peers


class BatchUnknown(MiniclusterError):
    """With `--balance`, it is not known of which samples some gradients are, and so their weight."""


class Steps:
    """The steps of this process. Forward passes belong to the batch that a balanced loader gave last."""

    def __init__(self) -> None:
        self.watch = Stopwatch(place.torch_device())
        self._balancer: Balancer | None = None
        self._portion: Portion | None = None
        self._used = True
        self._before: Portion | None = None
        self._ahead = False
        self._samples = 0
        self._averaged = False

    @property
    def portion(self) -> Portion | None:
        """What this rank has of the batch that it trains on; None if no balanced loader gave it."""
        return self._portion

    def giving(self, balancer: Balancer, batches: Iterator[Any]) -> Iterator[Any]:
        """Pass on a loader's batches."""
        self._ahead, begun = False, False
        while True:
            self._end_lap()
            self.watch.start()
            batch = next(batches, self)
            if batch is self:
                break
            if begun and balancer is not self._balancer and not self._used:
                raise _two_loaders()
            self._give(balancer, balancer.give())
            begun = True
            try:
                yield batch
            except GeneratorExit:
                self._used = True  # The loop was left early.
                raise
        self._give(None, None)
        self.watch.lap()
        self._samples = 0

    def begin_forward(self, inputs: Any, ranks: int) -> Portion | None:
        """Return what this rank has of the batch of a forward pass. ranks: number of the model's ranks."""
        self._check_ahead(inputs)
        if self._portion and ranks != place.world_size():
            raise BatchUnknown(
                f"A model is trained by {ranks} of {place.world_size()} ranks; --balance divides its batches "
                "among all.",
                "Train it on all ranks, or leave --balance out.",
            )
        self._used = True
        if self._portion:
            self.watch.start()
        return self._portion

    def averaged(self, peers: Peers, device: torch.device) -> None:
        """Called when a backward pass has handed over all gradients, with the watch stopped."""
        self._averaged = True
        if self._balancer:
            self._balancer.agree(peers, device)

    def _give(self, balancer: Balancer | None, portion: Portion | None) -> None:
        # Either the loop leaves out batches, or it is always one ahead.
        self._ahead |= not self._used and balancer in (self._balancer, None)
        self._before = self._portion
        self._balancer, self._portion, self._used = balancer, portion, portion is None
        if portion:
            self._samples += len(portion.samples)

    def _end_lap(self) -> None:
        """End the time of a step; several batches are one step if their gradients are averaged together."""
        if self._averaged and self._balancer:
            self._balancer.measured(self.watch.lap(), self._samples)
            self._samples, self._averaged = 0, False

    def _check_ahead(self, inputs: Any) -> None:
        """Refuse a batch that came before the last one, where that can be seen from its size."""
        if not self._ahead or self._before is None:
            return
        tensors = [one for one in tree_leaves(inputs) if isinstance(one, torch.Tensor)]
        sizes = {size for tensor in tensors for size in tensor.shape}
        own = len(self._portion.samples) if self._portion else 0
        if len(self._before.samples) in sizes and own not in sizes:
            raise BatchUnknown(
                "The loop takes the next batch from its loader before it trains on this one, so --balance "
                "cannot tell how many samples a step has.",
                "Train on each batch before you take the next; num_workers= of the DataLoader loads ahead.",
            )


def _two_loaders() -> BatchUnknown:
    return BatchUnknown(
        "A step uses batches of two loaders of mc.prepare(). --balance knows the weight of one.",
        "Prepare one of them without the optimizer: mc.prepare(model, loader=loader) divides evenly. "
        "Or put both data sets into one loader.",
    )


@cache
def steps() -> Steps:
    """Return this process's instance."""
    return Steps()
