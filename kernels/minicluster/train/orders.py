"""In which order an epoch takes its samples: what the loader's own sampler says, the same on all ranks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

_KNOWN = (SequentialSampler, RandomSampler, WeightedRandomSampler, SubsetRandomSampler)
"""Samplers that draw from their `generator` alone, so that all ranks can draw the same."""


def sampler_of(loader: DataLoader[Any]) -> Any:
    """Return what chooses a loader's samples, also where it was given inside of a batch sampler."""
    batches = loader.batch_sampler
    return batches.sampler if type(batches) is BatchSampler else loader.sampler


def trouble_with(loader: DataLoader[Any]) -> str:
    """Return in words why the order of a loader cannot be the same on all ranks."""
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        return f"a loader with the batch sampler {type(loader.batch_sampler).__name__}"
    if type(sampler_of(loader)) not in _KNOWN:
        return f"a loader with the sampler {type(sampler_of(loader)).__name__}"
    return ""


class EpochOrder:
    """The samples of each epoch, as a sampler draws them from a generator that all ranks seed alike."""

    def __init__(self, sampler: Sampler[int], seed: int = 0) -> None:
        self.sampler = sampler
        self._seed = seed

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def of(self, epoch: int) -> list[int]:
        """Draw an epoch's samples. For a loader with shuffle=True it is DistributedSampler's order."""
        drawn: Any = copy.copy(self.sampler)
        drawn.generator = torch.Generator().manual_seed(self._seed + epoch)
        return list(drawn)
