"""Each sample of an epoch is seen once, even if the number of ranks changes meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from minicluster.train.loaders import ElasticSampler, EpochOrder, SharedLoader, share


def loaders(
    ranks: int, size: int, batch: int, patch: pytest.MonkeyPatch, shuffle: bool
) -> list[SharedLoader]:
    patch.setenv("WORLD_SIZE", str(ranks))
    data = TensorDataset(torch.arange(size))
    made = [share(DataLoader(data, batch_size=batch, shuffle=shuffle)) for _ in range(ranks)]
    assert all(isinstance(loader, SharedLoader) for loader in made)
    return made  # type: ignore[return-value]


def step(rank: int, iterators: list, patch: pytest.MonkeyPatch) -> list[int] | None:
    patch.setenv("RANK", str(rank))
    got = next(iterators[rank], None)
    return None if got is None else got[0].tolist()


def go(made: list[SharedLoader], steps: int | None, patch: pytest.MonkeyPatch) -> tuple[list[int], dict]:
    """Take steps on all ranks (None: to the epoch's end); return the samples and the final state."""
    patch.setenv("WORLD_SIZE", str(len(made)))
    iterators, seen, taken = [iter(loader) for loader in made], [], 0
    while steps is None or taken < steps:
        got = [step(rank, iterators, patch) for rank in range(len(made))]
        if got[0] is None:
            assert not any(got), "ranks end their epochs at different steps"
            break
        assert len({len(part or []) for part in got}) == 1, "ranks have batches of different sizes"
        seen += [sample for part in got for sample in part or []]
        taken += 1
    states = [loader.state_dict() for loader in made]
    assert all(state == states[0] for state in states)
    return seen, states[0]


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 5),
    worlds=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4),
)
def test_each_sample_is_seen_once_however_often_the_ranks_change(
    size: int, batch: int, worlds: list[tuple[int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        seen: list[int] = []
        state = None
        for number, (ranks, steps) in enumerate(worlds):
            made = loaders(ranks, size, batch, patch, shuffle=True)
            for loader in made:
                if state is not None:
                    loader.load_state_dict(state)
            more, state = go(made, None if number == len(worlds) - 1 else steps, patch)
            seen += more
            if state["epoch"]:
                break
        counts = Counter(seen)
        assert set(counts) == set(range(size))
        # Only the samples that fill the last step are repeated.
        assert len(seen) - size < max(ranks for ranks, _ in worlds)


def test_without_an_interruption_it_is_torchs_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    data = TensorDataset(torch.arange(20))
    for shuffle, sampler in ((True, RandomSampler), (False, SequentialSampler)):
        for drop_last in (True, False):
            ours = ElasticSampler(EpochOrder(sampler(data)), drop_last=drop_last)
            torchs = DistributedSampler(data, 3, 1, shuffle=shuffle, drop_last=drop_last)
            for epoch in range(2):
                ours.epoch = epoch
                torchs.set_epoch(epoch)
                assert list(ours) == list(torchs)
                assert len(ours) == len(torchs)


def test_a_loop_that_is_left_early_begins_a_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    (loader,) = loaders(1, 10, 2, monkeypatch, shuffle=True)
    first = next(iter(loader))[0].tolist()
    second = next(iter(loader))[0].tolist()
    assert loader.epoch == 1
    assert first != second


def test_a_run_that_goes_on_draws_no_random_number_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    (loader,) = loaders(1, 10, 2, monkeypatch, shuffle=True)
    torch.manual_seed(3)
    whole, states = [], []
    for _ in range(2):
        for _batch in loader:
            whole.append(torch.rand(1).item())
            states.append((loader.state_dict(), torch.get_rng_state()))
    (again,) = loaders(1, 10, 2, monkeypatch, shuffle=True)
    position, randoms = states[2]
    again.load_state_dict(position)
    torch.set_rng_state(randoms)
    rest = [torch.rand(1).item() for _ in range(again.epoch, 2) for _batch in again]
    assert rest == whole[3:]


def test_processes_of_a_loader_take_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    (loader,) = loaders(1, 12, 2, monkeypatch, shuffle=False)
    data = loader.dataset
    sampler = ElasticSampler(EpochOrder(loader.sampler.order.sampler), drop_last=False)  # type: ignore[attr-defined]
    with_processes = SharedLoader(sampler, data, batch_size=2, num_workers=2)
    position = None
    for number, (batch,) in enumerate(with_processes):
        if number == 1:
            assert batch.tolist() == [2, 3]
            # Samples that worker processes have prefetched do not count.
            position = with_processes.state_dict()
            break
    assert position is not None
    loader.load_state_dict(position)
    assert [batch.tolist() for (batch,) in loader] == [[4, 5], [6, 7], [8, 9], [10, 11]]
