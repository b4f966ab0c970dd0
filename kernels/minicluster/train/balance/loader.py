"""A loader whose batches are divided by speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Sampler
from torch.utils.data.distributed import DistributedSampler

from minicluster.train import place
from minicluster.train.balance import rank
from minicluster.train.balance.balancer import Balancer
from minicluster.train.balance.steps import steps
from minicluster.train.loaders import ElasticSampler, LoaderNotDivisible, SharedLoader, options_of, share


class BalancedLoader(SharedLoader):
    """A loader over this rank's slices of the batches that one process would have, batch_size times as many
    samples as there are ranks. The slices follow the ranks' speeds."""

    def __init__(self, sampler: ElasticSampler, dataset: Any, **options: Any) -> None:
        self._balancer = Balancer((options["batch_size"] or 1) * place.world_size())
        self._slices = Slices(sampler, self._balancer)
        super().__init__(sampler, dataset, **options)

    @property
    def _index_sampler(self) -> Slices:  # pyright: ignore[reportIncompatibleMethodOverride]
        # batch_size and sampler stay what they are in any other loader of mc.prepare().
        return self._slices

    @property
    def next_loop(self) -> tuple[int, int]:
        return super().next_loop[0], self._balancer.shares.digest

    def begin_anew(self, epoch: int) -> None:
        super().begin_anew(epoch)
        self._balancer.shares.begin_anew()

    def __reduce__(self) -> tuple[Any, ...]:
        # In the notebook, which has no ranks, it is one that divides evenly.
        return _divided_evenly, (self.elastic, self.dataset, options_of(self), self.state_dict())

    def _to_the_end(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        return steps().giving(self._balancer, super()._to_the_end(begin))


class Slices(Sampler[list[int]]):
    """Yields this rank's samples of each batch of the pass."""

    def __init__(self, sampler: ElasticSampler, balancer: Balancer) -> None:
        self._sampler = sampler
        self._balancer = balancer

    def __iter__(self) -> Iterator[list[int]]:
        sampler, total = self._sampler, self._balancer.shares.total
        left = sampler.order.of(sampler.epoch)[sampler.consumed :]
        self._balancer.begin_pass()
        for first in range(0, len(left), total):
            batch = left[first : first + total]
            if len(batch) == total or not sampler.drop_last:
                samples = self._balancer.draw(len(batch))
                yield batch[samples.start : samples.stop]

    def __len__(self) -> int:
        size, total = len(self._sampler.order), self._balancer.shares.total
        return size // total if self._sampler.drop_last else -(-size // total)


def share_by_speed(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader whose batches are divided by speed. Raises LoaderNotDivisible."""
    hint = "Give mc.prepare() a loader with a batch_size and a sampler of torch, such as shuffle=True."
    if isinstance(loader.sampler, DistributedSampler):
        raise LoaderNotDivisible("--balance cannot divide a loader with a DistributedSampler by speed.", hint)
    shared = share(loader)
    if isinstance(shared, BalancedLoader) or not isinstance(shared, SharedLoader) or place.world_size() == 1:
        return shared
    if shared.batch_size is None:
        raise LoaderNotDivisible("--balance cannot divide a loader that has no batches by speed.", hint)
    rank.used = True
    return BalancedLoader(shared.elastic, shared.dataset, **options_of(shared))


def _divided_evenly(
    sampler: ElasticSampler, dataset: Any, options: dict[str, Any], state: dict[str, Any]
) -> SharedLoader:
    loader = SharedLoader(sampler, dataset, **options)
    loader.load_state_dict(state)
    return loader
