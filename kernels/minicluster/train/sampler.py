"""Which samples of an epoch this rank takes, from any position on and for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import Sampler

from minicluster.train import place
from minicluster.train.orders import EpochOrder


class ElasticSampler(Sampler[int]):
    """One order of an epoch's samples, the same on all ranks, of which each takes its turn.

    consumed: samples of the epoch that all ranks together have taken before. What is left is divided
    among the ranks that are there now, so that each sample of an epoch is seen once; with
    drop_last=False the first ones of the rest come again, at most world_size() - 1, where the ranks
    would else take different numbers of steps.
    """

    def __init__(self, order: EpochOrder, *, drop_last: bool) -> None:
        self.order = order
        self.drop_last = drop_last
        self.epoch = 0
        self.consumed = 0

    def __iter__(self) -> Iterator[int]:
        ranks, rank = place.world_size(), place.rank()
        left = self.order.of(self.epoch)[self.consumed :]
        if self.drop_last:
            left = left[: len(left) - len(left) % ranks]
        elif left and len(left) % ranks:
            missing = ranks - len(left) % ranks
            left += (left * -(-missing // len(left)))[:missing]
        return iter(left[rank::ranks])

    def __len__(self) -> int:
        """Return this rank's share of a whole epoch."""
        size, ranks = len(self.order), place.world_size()
        return size // ranks if self.drop_last else -(-size // ranks)
