"""Divides a loader's data among the ranks."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from minicluster.errors import MiniclusterError
from minicluster.train import fault_tolerant, place
from minicluster.train.snapshots.session import finish_writing


class LoaderNotDivisible(MiniclusterError):
    """mc.prepare() cannot divide this loader's data among the ranks."""


_made: weakref.WeakValueDictionary[int, SharedLoader] = weakref.WeakValueDictionary()
"""The loaders of this process, by their numbers."""
_numbers = itertools.count()


def loaders_made() -> dict[int, SharedLoader]:
    """Return this process's loaders, in the order in which they were made: it is the same on all ranks."""
    return dict(_made)


class SharedLoader(DataLoader[Any]):
    """A DataLoader over this rank's share of the data, with a new order in each epoch.

    elastic: its sampler. epoch: number of complete passes. A snapshot includes the loader's position. A
    resumed run continues with the next batch or, if the number of ranks changed, with the next samples.
    """

    def __init__(self, sampler: ElasticSampler, dataset: Any, **options: Any) -> None:
        super().__init__(dataset, sampler=sampler, **options)
        self.elastic = sampler
        self._given = 0
        self._within = False
        _made[next(_numbers)] = self

    @property
    def epoch(self) -> int:
        return self.elastic.epoch

    def state_dict(self) -> dict[str, Any]:
        size = len(self.elastic.order)
        each = (self.batch_size or 1) * self.elastic.parts
        consumed = min(size, self.elastic.consumed + self._given * each)
        return {"epoch": self.epoch, "consumed": consumed, "within": self._within}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next loop at the saved position."""
        self.elastic.epoch, self.elastic.consumed = state["epoch"], state["consumed"]
        self._given, self._within = 0, state["within"]

    @property
    def next_loop(self) -> tuple[int, int]:
        """What has to be the same on all ranks: the next loop's epoch, and a digest of how it is divided."""
        return self.epoch + self._left_early, 0

    def begin_anew(self, epoch: int) -> None:
        """Begin the next loop with an epoch's first batch, whatever this rank did before."""
        self._go_to(epoch)

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._left_early:
            self._turn()
        if not self._within:
            return self._to_the_end(super().__iter__)
        return self._to_the_end(lambda: _without_a_draw(super(SharedLoader, self).__iter__))

    def _to_the_end(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        self._within = True
        if self.num_workers:
            finish_writing()
        for batch in begin():
            self._given += 1
            yield batch
        self._turn()

    @property
    def _left_early(self) -> bool:
        """Whether the previous loop was left before its end; one that a snapshot continues was not."""
        return self._within and self._given > 0

    def _turn(self) -> None:
        self._go_to(self.epoch + 1)

    def _go_to(self, epoch: int) -> None:
        self.elastic.epoch, self.elastic.consumed = epoch, 0
        self._given, self._within = 0, False


def _without_a_draw(begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Start a loop in mid-epoch without its random draw, which the epoch's first loop already made."""
    before = torch.get_rng_state()
    iterator = begin()
    torch.set_rng_state(before)
    return iterator


def share(loader: DataLoader[Any], part: tuple[int, int] | None = None) -> DataLoader[Any]:
    """Return a loader over this rank's share of the data, with the same options.

    The batch size per rank stays the same, so a step of all ranks has world_size() times as many samples.
    part: the number of this rank's share, and how many there are; None: each rank has its own. Ranks that
    compute the same samples together have one share. Raises LoaderNotDivisible.
    """
    if isinstance(loader.sampler, ElasticSampler):
        loader.sampler.part = part
        return loader
    live = fault_tolerant.wanted()
    if isinstance(loader.sampler, DistributedSampler) and not live:
        _check_same_part(loader.sampler, part)
        return loader
    trouble = _trouble(loader)
    if trouble and place.world_size() == 1 and not live:
        return loader
    if trouble:
        hint = "Divide the data by mc.rank() and mc.world_size() yourself, without mc.prepare()."
        raise LoaderNotDivisible(f"mc.prepare() cannot divide {trouble}.", hint)
    if live:
        return fault_tolerant.share(loader, options_of(loader))
    options = options_of(loader)
    sampler = ElasticSampler(EpochOrder(sampler_of(loader)), drop_last=options["drop_last"], part=part)
    return SharedLoader(sampler, loader.dataset, **options)


def _check_same_part(sampler: DistributedSampler[Any], part: tuple[int, int] | None) -> None:
    if part is not None and part != (sampler.rank, sampler.num_replicas):
        raise LoaderNotDivisible(
            f"The loader's DistributedSampler gives this rank part {sampler.rank} of {sampler.num_replicas}; "
            f"with this strategy it is to read part {part[0]} of {part[1]}.",
            "Give mc.prepare() a loader without a DistributedSampler: it divides the data.",
        )


def _trouble(loader: DataLoader[Any]) -> str:
    """Return why a loader cannot be divided, as text for a message; "" if it can."""
    if isinstance(loader.dataset, IterableDataset):
        return "an IterableDataset among the ranks"
    return trouble_with(loader)


def options_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the options with which a loader was made, but for its data and its sampler."""
    batches = loader.batch_sampler if type(loader.batch_sampler) is BatchSampler else loader
    return {
        "batch_size": batches.batch_size,
        "drop_last": batches.drop_last,
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }


# Selects this rank's samples of an epoch, from any position on and for any number of ranks.


class ElasticSampler(Sampler[int]):
    """All ranks use the same order of an epoch's samples; each takes every n-th sample.

    part: this rank's share and the number of shares, if ranks read the same samples; None: each has its own.
    consumed: number of the epoch's samples that all ranks have used before. The current ranks divide the
    rest, so each sample is seen once per epoch. With drop_last=False, up to world_size() - 1 samples are
    repeated, so that all ranks take the same number of steps.
    """

    def __init__(self, order: EpochOrder, *, drop_last: bool, part: tuple[int, int] | None = None) -> None:
        self.order = order
        self.part = part
        self.drop_last = drop_last
        self.epoch = 0
        self.consumed = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out which share is this rank's: elsewhere, it is another one."""
        return {**vars(self), "part": None}

    @property
    def parts(self) -> int:
        """Into how many shares the data is divided."""
        return place.world_size() if self.part is None else self.part[1]

    def __iter__(self) -> Iterator[int]:
        ranks, rank = self.parts, place.rank() if self.part is None else self.part[0]
        left = self.order.of(self.epoch)[self.consumed :]
        if self.drop_last:
            left = left[: len(left) - len(left) % ranks]
        elif left and len(left) % ranks:
            missing = ranks - len(left) % ranks
            left += (left * -(-missing // len(left)))[:missing]
        return iter(left[rank::ranks])

    def __len__(self) -> int:
        """Return the number of this rank's samples in a whole epoch."""
        size, ranks = len(self.order), self.parts
        return size // ranks if self.drop_last else -(-size // ranks)


# The order of an epoch's samples: from the loader's own sampler, and the same on all ranks.


_KNOWN = (SequentialSampler, RandomSampler, WeightedRandomSampler, SubsetRandomSampler)
"""Samplers that draw only from their `generator`, so all ranks can draw the same order."""


def sampler_of(loader: DataLoader[Any]) -> Any:
    """Return a loader's sampler, even if it is inside a batch sampler."""
    batches = loader.batch_sampler
    return batches.sampler if type(batches) is BatchSampler else loader.sampler


def trouble_with(loader: DataLoader[Any]) -> str:
    """Return why a loader's order cannot be the same on all ranks, as text for a message; "" if it can."""
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        return f"a loader with the batch sampler {type(loader.batch_sampler).__name__}"
    if type(sampler_of(loader)) not in _KNOWN:
        return f"a loader with the sampler {type(sampler_of(loader)).__name__}"
    return ""


class EpochOrder:
    """The order of each epoch, drawn by a sampler from a generator with the same seed on all ranks."""

    def __init__(self, sampler: Sampler[int], seed: int = 0) -> None:
        self.sampler = sampler
        self._seed = seed

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def of(self, epoch: int) -> list[int]:
        """Draw an epoch's order. With shuffle=True it is the order of DistributedSampler."""
        drawn: Any = copy.copy(self.sampler)
        drawn.generator = torch.Generator().manual_seed(self._seed + epoch)
        return list(drawn)
