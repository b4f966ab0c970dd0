"""How batches are divided among ranks of different speed, and when shares change."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from minicluster.options import OptionWrong, parse_cell_line
from minicluster.train.balance.balancer import Balancer
from minicluster.train.balance.loader import BalancedLoader, Slices, share_by_speed
from minicluster.train.balance.report import differ, table
from minicluster.train.balance.shares import Measured, Shares, divided
from minicluster.train.balance.stopwatch import Stopwatch
from minicluster.train.loaders import ElasticSampler, LoaderNotDivisible, SharedLoader, share

DATA = TensorDataset(torch.arange(100))
MUCH = 10**9


def measured(*sample_s: float, drawn: int = 0, most: int = MUCH) -> list[Measured]:
    return [Measured(seconds, drawn, most) for seconds in sample_s]


@pytest.mark.parametrize(
    ("total", "sample_s", "shares"),
    [
        (64, [1, 1], (32, 32)),
        (7, [1, 1, 1], (3, 2, 2)),
        (64, [1, 3], (48, 16)),
        (128, [4, 10, 4, 10], (46, 18, 46, 18)),
        (4, [1, 100, 1, 100], (1, 1, 1, 1)),
        (10, [1, 1000], (9, 1)),
    ],
)
def test_the_slowest_rank_ends_as_early_as_possible(
    total: int, sample_s: list[float], shares: tuple[int, ...]
) -> None:
    assert divided(total, sample_s) == shares


def test_no_division_is_better() -> None:
    sample_s = [0.7, 1.9, 1.1]
    ways = [(a, b, 17 - a - b) for a in range(1, 16) for b in range(1, 17 - a)]
    best = min(max(n * s for n, s in zip(way, sample_s, strict=True)) for way in ways)
    found = divided(17, sample_s)
    assert sum(found) == 17
    assert max(n * s for n, s in zip(found, sample_s, strict=True)) == best


def test_a_share_stays_within_the_memory() -> None:
    assert divided(64, [1, 4, 4], [30, MUCH, MUCH]) == (30, 17, 17)
    assert divided(64, [1, 2, 4], [30, 20, MUCH]) == (30, 20, 14)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11, 23, 24])
def test_each_sample_of_a_batch_has_the_same_weight(size: int) -> None:
    shares = Shares(24, 4)
    shares.learn(measured(1, 5, 2, 3))
    weights = [0.0] * size
    for rank in range(4):
        portion = shares.portion(0, size, rank)
        for sample in portion.samples:
            weights[sample] += portion.part / len(portion.samples)
    assert weights == pytest.approx([1 / size] * size)


def test_shares_change_where_no_rank_has_drawn_yet() -> None:
    shares = Shares(16, 2)
    assert shares.learn([*measured(1, drawn=5), *measured(3, drawn=9)])
    assert [len(shares.portion(batch, 16, 0).samples) for batch in (0, 8, 9, 100)] == [8, 8, 12, 12]
    shares.begin_pass()
    assert len(shares.portion(0, 16, 0).samples) == 12


def test_shares_change_only_if_that_pays() -> None:
    assert not Shares(100, 2).learn(measured(1.0, 1.04))
    shares = Shares(100, 2)
    assert shares.learn(measured(1.0, 2.0, drawn=1))
    assert not shares.learn(measured(1.0, 2.0, drawn=2))


def test_times_are_smoothed() -> None:
    shares = Shares(100, 2)
    shares.learn(measured(1.0, 1.0))
    shares.learn(measured(1.0, 3.0))
    assert shares.sample_s == (1.0, 2.0)


def test_without_the_times_of_all_nothing_changes() -> None:
    shares = Shares(100, 2)
    assert not shares.learn(measured(1.0, 0.0))
    assert shares.newest == (50, 50)


@pytest.mark.parametrize("times", [(1.0, 3.0), (1.0, 1.0)])
def test_ranks_that_know_different_times_are_told_apart_and_begin_anew(times: tuple[float, ...]) -> None:
    knows, other = Shares(100, 2), Shares(100, 2)
    knows.learn(measured(*times))
    assert knows.digest != other.digest, "even if the times changed no share"
    for shares in (knows, other):
        shares.begin_anew()
        assert shares.portion(3, 100, 0).samples == range(50)
    assert knows.digest == other.digest


def balancers(patch: pytest.MonkeyPatch, ranks: int, total: int) -> list[Balancer]:
    patch.setenv("WORLD_SIZE", str(ranks))
    made = []
    for rank in range(ranks):
        patch.setenv("RANK", str(rank))
        made.append(Balancer(total))
    return made


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("consumed", [0, 20])
def test_batches_are_those_of_one_process(
    monkeypatch: pytest.MonkeyPatch, consumed: int, drop_last: bool
) -> None:
    options: dict[str, Any] = {"batch_size": 12, "shuffle": True, "drop_last": drop_last}
    alone: Any = share(DataLoader(DATA, **options))
    assert isinstance(alone, SharedLoader)
    alone.load_state_dict({"epoch": 1, "consumed": consumed, "within": True})
    expected = [batch[0].tolist() for batch in alone]
    made = balancers(monkeypatch, 3, 12)
    passes = []
    for balancer in made:
        order = ElasticSampler(alone.elastic.order, drop_last=drop_last)
        order.epoch, order.consumed = 1, consumed
        passes.append(iter(Slices(order, balancer)))
    steps = [[next(slices) for slices in passes] for _ in range(2)]
    for balancer in made:
        # One rank's loader has drawn a batch more than those of the others.
        balancer.shares.learn([*measured(1, drawn=2), *measured(2, drawn=3), *measured(4, drawn=2)])
    steps += map(list, zip(*passes, strict=True))
    assert [list(itertools.chain(*step)) for step in steps] == expected
    assert [[len(part) for part in step] for step in steps[2:4]] == [[4, 4, 4], [8, 3, 1]]


def test_a_balanced_loader_looks_like_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    given = DataLoader(DATA, batch_size=15, shuffle=True)
    plain, balanced = share(given), share_by_speed(given)
    assert isinstance(balanced, BalancedLoader) and isinstance(plain, SharedLoader)
    assert (balanced.batch_size, len(balanced)) == (15, 4) == (plain.batch_size, len(plain))
    assert balanced.state_dict() == plain.state_dict()
    assert share_by_speed(balanced) is balanced
    back = pickle.loads(pickle.dumps(balanced))
    assert type(back) is SharedLoader and len(back) == 4


class Own(Sampler[int]):
    """A sampler that torch does not know."""


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)), "DistributedSampler"),
        (lambda: DataLoader(DATA, batch_size=None), "no batches"),
        (lambda: DataLoader(DATA, sampler=Own()), "the sampler Own"),
    ],
)
def test_loaders_that_cannot_be_balanced_are_refused(
    monkeypatch: pytest.MonkeyPatch, made: Any, words: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LoaderNotDivisible, match=words):
        share_by_speed(made())


def test_a_watch_counts_what_is_between_start_and_stop() -> None:
    watch = Stopwatch(torch.device("cpu"))
    assert watch.lap().seconds == 0.0
    watch.start()
    watch.start()
    watch.stop()
    watch.stop()
    assert len(watch.lap().spans) == 1
    assert not watch.lap().spans


def test_the_table_shows_each_rank() -> None:
    shares = Shares(128, 4)
    assert table(shares) == "the ranks are about equally fast. Each takes 32 of a step's 128 samples."
    shares.learn(measured(0.004, 0.01, 0.004, 0.01))
    head, columns, *rows = table(shares).splitlines()
    assert head == "a step's 128 samples are divided by measured speed."
    assert columns.split() == ["rank", "samples/s", "samples", "share"]
    assert [row.split() for row in rows][:2] == [["0", "250", "46", "35.9%"], ["1", "100", "18", "14.1%"]]


def test_small_changes_are_not_printed_again() -> None:
    assert not differ((46, 18), (47, 17))
    assert differ((46, 18), (50, 14))


@pytest.mark.parametrize(
    ("line", "words"),
    [("--fault-tolerant", "ranks that stay"), ("--comm auto", "--comm auto times steps")],
)
def test_options_that_do_not_go_with_it_are_refused(line: str, words: str) -> None:
    assert parse_cell_line("--balance --comm localsgd").balance
    with pytest.raises(OptionWrong, match=words):
        parse_cell_line(f"--balance {line}")
