"""A loader's share of the data for this rank."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from minicluster.errors import MiniclusterError

from . import place


class LoaderNotDivisible(MiniclusterError):
    """A loader whose data cannot be divided among the ranks by itself."""


class SharedLoader(DataLoader[Any]):
    """A DataLoader over this rank's share, in another order each time that it is gone through."""

    def __init__(self, sampler: DistributedSampler[Any], **options: Any) -> None:
        super().__init__(sampler.dataset, sampler=sampler, **options)
        self._distributed = sampler
        self._epoch = 0

    def __iter__(self) -> Any:
        # Without it each epoch would have the order of the first.
        self._distributed.set_epoch(self._epoch)
        self._epoch += 1
        return super().__iter__()


def share(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader over this rank's share of the same data, with the same options.

    The batch size stays: all ranks together take world_size() times as much in each step.
    Raises LoaderNotDivisible.
    """
    if place.world_size() == 1 or isinstance(loader.sampler, DistributedSampler):
        return loader
    _check(loader)
    sampler: DistributedSampler[Any] = DistributedSampler(
        loader.dataset,
        num_replicas=place.world_size(),
        rank=place.rank(),
        shuffle=isinstance(loader.sampler, RandomSampler),
        drop_last=loader.drop_last,
    )
    return SharedLoader(sampler, **_options(loader))


def _check(loader: DataLoader[Any]) -> None:
    hint = "Divide the data by mc.rank() and mc.world_size() yourself, without mc.prepare()."
    if isinstance(loader.dataset, IterableDataset):
        raise LoaderNotDivisible("mc.prepare() cannot divide an IterableDataset among the ranks.", hint)
    if type(loader.batch_sampler) not in (BatchSampler, type(None)):
        name = type(loader.batch_sampler).__name__
        raise LoaderNotDivisible(f"mc.prepare() cannot divide a loader with the batch sampler {name}.", hint)
    if type(loader.sampler) not in (RandomSampler, SequentialSampler):
        name = type(loader.sampler).__name__
        raise LoaderNotDivisible(f"mc.prepare() cannot divide a loader with the sampler {name}.", hint)


def _options(loader: DataLoader[Any]) -> dict[str, Any]:
    return {
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
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
