"""What --comm takes, what auto chooses for measured times, and when a trial of it has failed."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch

from minicluster.options import OptionWrong, parse_cell_line
from minicluster.train.comm.choice import Measured, choose
from minicluster.train.comm.links import rounds
from minicluster.train.comm.losses import behaves_otherwise
from minicluster.train.comm.trial import Before, Trial
from minicluster.train.comm.weights import Chunk, OuterStep
from minicluster.wire.comm import METHODS, CommMethod, CommWrong, comm_method


@pytest.mark.parametrize("text", [*METHODS, "powersgd:rank=2,start=20", "diloco:lr=0.5,sent=fp32"])
def test_a_method_is_read_and_written_alike(text: str) -> None:
    assert str(comm_method(text)) == text


def test_options_that_are_not_given_have_defaults() -> None:
    method = comm_method("localsgd:period=16")
    assert (method.whole("period"), method.whole("start"), method["sent"]) == (16, 0, "bf16")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("fast", "'fast' is no way to communicate", "ddp, bf16, fp16, powersgd, localsgd, diloco, async."),
        ("bf16:", "'bf16:' has a colon, but no option after it", "bf16:bucket_mb=5"),
        ("bf16:rank=2", "'rank=2' is no option of bf16", "bf16:bucket_mb=5"),
        ("auto:period=2", "'period=2' is no option of auto", "auto has no options."),
        ("localsgd:period", "'period' is no option of localsgd", "period=8,start=0,sent=bf16"),
        ("localsgd:period=0", "localsgd's period is a whole number from 1 to 100000, not '0'", ""),
        ("localsgd:period=two", "localsgd's period is a whole number from 1 to 100000, not 'two'", ""),
        ("diloco:momentum=1", "diloco's momentum is a number from 0.0 to 0.999, not '1'", ""),
        ("diloco:lr=nan", "diloco's lr is a number from 0.0 to 10.0, not 'nan'", ""),
        ("diloco:sent=int8", "diloco's sent is bf16 or fp32, not 'int8'", ""),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_refused_with_what_does(text: str, message: str, hint: str) -> None:
    with pytest.raises(CommWrong) as caught:
        comm_method(text)
    assert str(caught.value) == message
    assert hint in caught.value.hint
    with pytest.raises(OptionWrong) as refused:
        parse_cell_line(f"--comm {text}")
    assert refused.value.message == f"--comm: {message}."


def test_without_the_option_the_cell_communicates_as_it_says() -> None:
    assert parse_cell_line("").comm is None
    assert parse_cell_line("--comm auto").comm == "auto"


def measured(**changed: float | None) -> Measured:
    """Return about what three nodes on a gigabit network measure for ResNet18."""
    times = {
        "compute": 0.154,
        "plain": 0.642,
        "exact": 0.506,
        "bf16": 0.253,
        "powersgd": 0.189,
        "weights": 0.26,
    }
    return Measured(**(times | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        (measured(plain=0.16), "ddp"),
        (measured(plain=0.3, exact=0.15, bf16=0.02), "bf16"),
        (measured(powersgd=0.02), "powersgd:start=11"),
        (measured(), "localsgd:period=17,start=11"),
        (measured(powersgd=None), "localsgd:period=17,start=11"),
        (measured(weights=2.0), "diloco:period=130,start=11"),
        # Nothing comes near the compute time: the fastest is taken.
        (measured(compute=0.001, plain=0.5), "diloco:period=500,start=11"),
        # It would be the fastest, by too little.
        (measured(compute=0.1, plain=0.116, exact=0.05, bf16=0.025, weights=9.0, powersgd=None), "ddp"),
    ],
)
def test_the_first_way_that_is_fast_enough_is_chosen(found: Measured, chosen: str) -> None:
    assert str(choose(found, 11).method) == chosen


def test_what_is_expected_is_computed_from_what_was_measured() -> None:
    assert choose(measured(), 11).step_s == pytest.approx(0.154 + 0.26 / 17)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_each_meets_each_other_once(count: int) -> None:
    made = list(rounds(count))
    assert all(len(set(itertools.chain(*pairs))) == 2 * len(pairs) for pairs in made)
    assert sorted(itertools.chain(*made)) == list(itertools.combinations(range(count), 2))


def test_the_outer_step_is_that_of_torchs_sgd() -> None:
    torch.manual_seed(0)
    weights, same = torch.randn(5), torch.randn(5)
    same.copy_(weights).requires_grad_()
    chunk, outer = Chunk([weights]), OuterStep(lr=0.7, momentum=0.9)
    optimizer = torch.optim.SGD([same], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(4):
        change = torch.randn(5)
        chunk.remember()
        weights += change  # What the ranks have done apart; the outer step begins before it.
        chunk.step(change.clone(), outer)
        same.grad = -change
        optimizer.step()
        assert torch.allclose(weights, same, atol=1e-6)


FALLING = [2.0, 1.9, 1.85, 1.7, 1.65, 1.6]


@pytest.mark.parametrize(
    ("now", "otherwise"),
    [
        ([1.5, 1.4], False),
        ([1.75, 1.8], False),  # It stays as high as it was.
        ([3.0, 3.1], True),
        ([1.0, float("nan")], True),
        ([1.0, float("inf")], True),
        ([], False),
    ],
)
def test_losses_that_rise_behave_otherwise(now: list[float], otherwise: bool) -> None:
    assert behaves_otherwise(FALLING, now) is otherwise


def trial(period: int) -> Trial:
    model = torch.nn.Linear(1, 1)
    method = CommMethod("bf16") if period == 1 else CommMethod("localsgd", {"period": period})
    before = Before.of(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    return Trial(11, method, FALLING, before)


def test_a_trial_is_as_long_as_some_periods() -> None:
    assert trial(1).steps == 12
    assert trial(16).steps == 48


def test_ranks_that_do_well_only_apart_fail_a_trial() -> None:
    apart = [1.0] * 20
    assert not trial(4).failed(apart)
    # The mean is no higher than before: only the steps right after an average are.
    apart[4] = apart[8] = apart[12] = apart[16] = 2.5
    assert trial(4).failed(apart)
    assert not trial(1).failed(apart)


def test_a_trial_that_failed_leaves_nothing_behind() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    torch.manual_seed(0)

    def steps(count: int) -> list[torch.Tensor]:
        for index in range(count):
            optimizer.zero_grad()
            model(torch.full((2, 3), float(index)) + torch.eye(3)[:2]).square().sum().backward()
            optimizer.step()
        return [value.clone() for value in model.state_dict().values()]

    steps(2)
    before = pickle.loads(pickle.dumps(Before.of(model, [optimizer])))
    first = steps(5)
    before.restore(model, [optimizer])
    assert all(torch.equal(a, b) for a, b in zip(first, steps(5), strict=True))
