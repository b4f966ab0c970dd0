"""mc.prepare divides the samples chosen by the loader's own sampler among the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from minicluster.train.live.loader import LiveLoader
from minicluster.train.loaders import options_of, share

from .test_fault_tolerant import Quorum

DATA = TensorDataset(torch.arange(40))
SAMPLERS = {
    "with replacement": lambda: RandomSampler(DATA, replacement=True),
    "a part of them": lambda: RandomSampler(DATA, num_samples=16),
    "more than there are": lambda: RandomSampler(DATA, num_samples=100),
    "bootstrap": lambda: RandomSampler(DATA, replacement=True, num_samples=100),
    "weighted": lambda: WeightedRandomSampler([0.0] * 20 + [1.0] * 20, 40),
    "weighted, without replacement": lambda: WeightedRandomSampler([1.0] * 40, 12, replacement=False),
    "subset": lambda: SubsetRandomSampler([3, 5, 7, 11, 13, 17, 19, 23]),
    "the first ones": lambda: SequentialSampler(range(8)),
    "all": lambda: RandomSampler(DATA),
}
LOADERS = {
    "sampler": lambda sampler: DataLoader(DATA, batch_size=2, sampler=sampler),
    "batch sampler": lambda sampler: DataLoader(DATA, batch_sampler=BatchSampler(sampler, 2, False)),
}


def expected(sampler: Any, epoch: int) -> list[int]:
    sampler.generator = torch.Generator().manual_seed(epoch)
    return list(sampler)


def together(of_ranks: list[Any]) -> Iterator[int]:
    """Yield the samples of all ranks, interleaved in rank order."""
    for batches in zip(*of_ranks, strict=True):
        assert {len(batch[0]) for batch in batches} == {2}
        yield from itertools.chain.from_iterable(zip(*(batch[0].tolist() for batch in batches), strict=True))


@pytest.mark.parametrize("given", LOADERS)
@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_ranks_together_take_what_the_sampler_chooses(
    monkeypatch: pytest.MonkeyPatch, kind: str, given: str, ranks: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    made = [share(LOADERS[given](SAMPLERS[kind]())) for _ in range(ranks)]
    for epoch in range(2):
        batches = []
        for rank, loader in enumerate(made):
            monkeypatch.setenv("RANK", str(rank))
            batches.append(list(loader))
            assert len(batches[-1]) == len(loader)
        assert list(together(batches)) == expected(SAMPLERS[kind](), epoch)


@pytest.mark.parametrize("given", LOADERS)
@pytest.mark.parametrize("kind", SAMPLERS)
def test_so_do_those_that_come_and_go(kind: str, given: str) -> None:
    for epoch in range(2):
        taken: list[list[int]] = []
        for place in range(2):
            loader, quorum = LOADERS[given](SAMPLERS[kind]()), Quorum((0, 1), place=place)
            live = LiveLoader(quorum, loader, options_of(loader))  # type: ignore[arg-type]
            live.load_state_dict({"epoch": epoch, "consumed": 0})
            taken.append([batch[0].tolist() for batch in live])
        steps = [sample for step in zip(*taken, strict=True) for part in step for sample in part]
        assert steps == expected(SAMPLERS[kind](), epoch)


def test_a_run_that_goes_on_takes_the_rest_of_what_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = share(DataLoader(DATA, batch_size=4, sampler=SAMPLERS["bootstrap"]()))
    batches = iter(loader)
    begun = [next(batches)[0].tolist() for _ in range(20)]
    again: Any = share(DataLoader(DATA, batch_size=4, sampler=SAMPLERS["bootstrap"]()))
    again.load_state_dict(loader.state_dict())
    rest = [batch[0].tolist() for batch in again]
    assert list(itertools.chain(*begun, *rest)) == expected(SAMPLERS["bootstrap"](), 0)
