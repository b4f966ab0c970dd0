"""Steps with changing ranks: shares of an epoch, and messages."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from minicluster.train import place
from minicluster.train.live.loader import LiveLoader, next_take
from minicluster.train.live.model import ClosureNotTaken, LiveOptimizer
from minicluster.train.live.session import membership_sentence
from minicluster.train.live.settings import LIVE_RANK, LIVE_WORLD_SIZE, LiveSettings
from minicluster.train.loaders import options_of


class Quorum:
    """A session whose quorum and votes the test decides; tests/runtime has torchft's."""

    def __init__(self, members: tuple[int, ...] = (0,), place: int = 0) -> None:
        self.members = members
        self.place = place
        self.healed: dict[str, Any] | None = None
        self.optimizers: list[Any] = []
        self._after: list[Callable[[bool], None]] = []
        self._load: Callable[[dict[str, Any]], None] = lambda state: None

    def begin(self) -> None:
        if self.healed:
            self._load(self.healed)
            self.healed = None

    def keep(self, _name: str, load: Any, _state: Any) -> None:
        self._load = load

    def after_commit(self, call: Callable[[bool], None]) -> None:
        self._after.append(call)

    def commit(self, taken: bool = True) -> None:
        for call in self._after:
            call(taken)


def loader_of(quorum: Quorum, size: int = 10, **options: Any) -> LiveLoader:
    given = DataLoader(TensorDataset(torch.arange(size)), **{"batch_size": 2} | options)
    return LiveLoader(quorum, given, options_of(given))  # type: ignore[arg-type]


def values(batch: Any) -> list[int]:
    return batch[0].tolist()


steps_of_ranks = st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=60)


@given(size=st.integers(1, 60), batch=st.integers(1, 7), steps=steps_of_ranks)
def test_each_sample_counts_once_however_many_ranks_there_are(size, batch, steps):
    order, consumed, counted = list(range(100, 100 + size)), 0, []
    for count, taken in itertools.chain(steps, itertools.repeat((3, True))):
        takes = [next_take(order, consumed, rank, count, batch, False) for rank in range(count)]
        if takes[0] is None:
            break
        assert len({len(take.samples) for take in takes if take}) == 1, "all ranks weigh the same"
        if taken:
            counted += [sample for take in takes if take for sample in take.samples]
            consumed += takes[0].all
    assert set(counted) == set(order)
    assert len(counted) <= size + 4, "only the last step may repeat samples: fewer than it has ranks"


@given(size=st.integers(0, 40), batch=st.integers(1, 7), count=st.integers(1, 5))
def test_with_drop_last_only_whole_steps_are_taken(size, batch, count):
    order, consumed = list(range(size)), 0
    while take := next_take(order, consumed, 0, count, batch, True):
        assert take.all == count * batch
        consumed += take.all
    assert size - consumed < count * batch


def test_a_step_that_was_not_taken_comes_again_for_those_who_are_left():
    quorum = Quorum((0, 1), place=0)
    batches = iter(loader_of(quorum))
    assert values(next(batches)) == [0, 1]
    quorum.commit()
    assert values(next(batches)) == [4, 5]
    quorum.commit(taken=False)
    quorum.members = (0,)
    assert values(next(batches)) == [4, 5]
    quorum.commit()
    assert values(next(batches)) == [6, 7]


def test_batches_between_two_steps_of_the_optimizer_go_on():
    quorum = Quorum()
    batches = iter(loader_of(quorum))
    assert [values(next(batches)), values(next(batches))] == [[0, 1], [2, 3]]
    quorum.commit(taken=False)
    assert [values(next(batches)), values(next(batches))] == [[0, 1], [2, 3]]
    quorum.commit()
    assert values(next(batches)) == [4, 5]


def test_epochs_that_are_over_are_empty_for_a_rank_that_joins():
    quorum = Quorum((0, 1), place=1)
    quorum.healed = {"epoch": 2, "consumed": 4}
    loader = loader_of(quorum)
    seen = []
    for _ in range(4):
        seen.append([])
        for batch in loader:
            quorum.commit()
            seen[-1] += values(batch)
    assert seen[:2] == [[], []]
    assert seen[2] == [6, 7, 9]
    assert seen[3] == [2, 3, 6, 7, 9]


def test_after_resume_a_loop_begins_at_the_loaders_epoch():
    loader = loader_of(Quorum())
    loader.load_state_dict({"epoch": 2, "consumed": 6, "within": True})
    seen = [[sample for batch in loader for sample in values(batch)] for _ in range(loader.epoch, 4)]
    assert seen == [[6, 7, 8, 9], list(range(10))]


def test_an_epoch_has_another_order_than_the_last():
    quorum = Quorum()
    loader = loader_of(quorum, size=40, shuffle=True)
    epochs = [[sample for batch in loader for sample in values(batch)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(40))
    assert epochs[0] != epochs[1]


def test_a_loop_that_is_left_begins_anew():
    loader = loader_of(Quorum())
    assert values(next(iter(loader))) == [0, 1]
    assert values(next(iter(loader))) == [0, 1]


def test_batches_can_be_loaded_by_processes_and_one_by_one():
    ahead = loader_of(Quorum(), num_workers=1)
    assert [values(batch) for batch in ahead] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    single = loader_of(Quorum(), batch_size=None)
    assert [int(one[0]) for one in single] == list(range(10))


def test_a_loader_goes_back_to_the_notebook_as_a_plain_one():
    loader = loader_of(Quorum())
    back = pickle.loads(pickle.dumps(loader))
    assert type(back) is DataLoader
    assert values(next(iter(back))) == [0, 1]


def test_a_step_with_a_closure_is_refused_with_what_to_do() -> None:
    optimizer = LiveOptimizer(Quorum(), torch.optim.LBFGS([torch.nn.Parameter(torch.zeros(1))]))  # type: ignore[arg-type]
    with pytest.raises(ClosureNotTaken, match="LBFGS") as caught:
        optimizer.step(lambda: pytest.fail("no gradient may be computed"))
    assert "leave --fault-tolerant out" in caught.value.hint


def test_the_words_say_who_left_and_who_came():
    assert membership_sentence((0, 1, 2), (0, 2), 7) == "rank 1 is gone: 2 go on after step 7."
    assert membership_sentence((0, 2), (0, 2, 3), 9) == "rank 3 has joined: 3 go on after step 9."


def test_the_place_follows_the_ranks_that_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (place.rank(), place.world_size()) == (3, 4)
    monkeypatch.setenv(LIVE_RANK, "0")
    monkeypatch.setenv(LIVE_WORLD_SIZE, "2")
    assert (place.rank(), place.world_size()) == (0, 2)


def test_a_rank_reads_its_part_from_its_environment():
    environ = {"MINICLUSTER_LIGHTHOUSE": "10.0.0.1:29510", "RANK": "4", "MINICLUSTER_LIVE_JOINS": "1"}
    settings = LiveSettings.from_environ(environ)
    assert (settings.lighthouse, settings.rank, settings.joins) == ("10.0.0.1:29510", 4, True)
