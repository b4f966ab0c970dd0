"""Which samples of an epoch this rank takes, from any position on and for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

from . import place


class ElasticSampler(Sampler[int]):
    """One order of all samples for each epoch, the same on all ranks, of which each takes its turn.

    consumed: samples of the epoch that all ranks together have taken before. What is left is divided
    among the ranks that are there now, so that each sample of an epoch is seen once; with
    drop_last=False the first ones of the rest come again, at most world_size() - 1, where the ranks
    would else take different numbers of steps.
    """

    def __init__(self, dataset: Sized, *, shuffle: bool, drop_last: bool, seed: int = 0) -> None:
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.epoch = 0
        self.consumed = 0
        self._dataset = dataset

    def __iter__(self) -> Iterator[int]:
        ranks, rank = place.world_size(), place.rank()
        left = self._order()[self.consumed :]
        if self.drop_last:
            left = left[: len(left) - len(left) % ranks]
        elif left and len(left) % ranks:
            missing = ranks - len(left) % ranks
            left += (left * -(-missing // len(left)))[:missing]
        return iter(left[rank::ranks])

    def __len__(self) -> int:
        """Return this rank's share of a whole epoch."""
        size, ranks = len(self._dataset), place.world_size()
        return size // ranks if self.drop_last else -(-size // ranks)

    def _order(self) -> list[int]:
        size = len(self._dataset)
        if not self.shuffle:
            return list(range(size))
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return torch.randperm(size, generator=generator).tolist()
