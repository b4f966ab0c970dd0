"""The parts of sweeps around the search: values that arrive, sizes of trials, what is kept."""

import json
import math

import pytest

from minicluster.train.calls import WrongCall
from minicluster.train.metrics.sending import log_line
from minicluster.train.suggest import fix_parameters, suggest
from minicluster.train.trials import SuggestFailed
from minicluster.wire import CountRange, JobSpec
from minicluster.wire.sweeps.sweeps import SweepSettings, TrialState
from minicluster.wire.sweeps.trials import TrialRef
from minicluster_hub.sweeps.arriving import MOST_STEPS, TrialValues
from minicluster_hub.sweeps.checkpoints import surplus
from minicluster_hub.sweeps.grid import Visit, capacity, next_value
from minicluster_hub.sweeps.submission import replicas

from .test_search import record

REF = TrialRef(sweep=1, number=2, metric="val/loss", prunes=True)


def values(*lines, ref=REF):
    arrived = TrialValues(ref)
    arrived.receive(b"".join(log_line(rank, 1.0, step, named) for rank, step, named in lines))
    return arrived


def test_the_metrics_values_arrive_by_step_and_the_last_one_counts():
    arrived = values((0, 0, {"val/loss": 3.0}), (0, 1, {"acc": 0.5}), (0, 2, {"val/loss": 2.0, "acc": 0.6}))
    assert arrived.take() == [(0.0, 3.0), (2.0, 2.0)]
    assert arrived.last == (2.0, 2.0)
    assert arrived.take() == []


def test_the_lowest_rank_that_logs_it_counts():
    arrived = values((2, 0, {"val/loss": 9.0}), (1, 0, {"val/loss": 3.0}), (2, 1, {"val/loss": 8.0}))
    assert arrived.take() == [(0.0, 3.0)]
    assert arrived.last == (0.0, 3.0)


def test_records_without_a_step_are_counted():
    arrived = values(*((0, None, {"val/loss": float(number)}) for number in range(3)))
    assert arrived.take() == [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)]


def test_what_is_no_record_is_passed_over():
    arrived = TrialValues(REF)
    assert not arrived.receive(b'{"val/loss": 1}\n"val/loss"\n\xff "val/loss"\n')
    assert arrived.receive(log_line(0, 1.0, 4, {"val/loss": math.nan}))
    assert math.isnan(arrived.last[1])


def test_names_in_any_script_are_found():
    ref = REF.model_copy(update={"metric": 'Größe "λ"'})
    assert values((0, 1, {ref.metric: 2.0}), ref=ref).last == (1.0, 2.0)


def test_only_so_many_steps_are_compared():
    arrived = values(*((0, step, {"val/loss": 1.0}) for step in range(MOST_STEPS + 10)))
    assert len(arrived.take()) == MOST_STEPS
    arrived.receive(log_line(0, 1.0, 9_999, {"val/loss": 7.0}))
    assert arrived.take() == []
    assert arrived.last == (9_999.0, 7.0)


@pytest.mark.parametrize(
    ("asked", "pieces", "left", "most"),
    [
        ((1, 3), 3, 40, 1),
        ((1, 3), 3, 2, 1),
        ((1, 3), 3, 1, 3),
        ((2, 8), 8, 40, 2),
        ((2, 8), 8, 2, 4),
        ((2, 2), 8, 1, 2),
        ((1, 4), 2, math.inf, 1),
        ((4, 4), 2, 40, 4),
    ],
)
def test_a_trial_is_small_as_long_as_others_can_use_the_rest(asked, pieces, left, most):
    spec = JobSpec(payload_sha256="a" * 64, nodes=CountRange(min=asked[0], max=asked[1]))
    assert replicas(spec, pieces, left) == CountRange(min=asked[0], max=most)


def test_the_best_and_the_latest_trial_keep_their_snapshots():
    trials = [
        record(0, TrialState.COMPLETE, 0.5),
        record(1, TrialState.COMPLETE, 0.1),
        record(2, TrialState.FAILED),
        record(3, TrialState.PRUNED),
        record(4),
    ]
    kept = {0, 1, 2, 3} - {one.number for one in surplus(SweepSettings(metric="loss"), trials)}
    assert kept == {1, 3}


def test_a_failed_trial_says_nothing_about_the_rest_of_its_branch():
    points = {"a": [0, 1], "b": [0, 1]}
    visits = [Visit((("a", 0),), over=True, failed=True), Visit((("a", 0), ("b", 0)), over=True)]
    assert capacity(visits, points) == 2
    assert next_value(visits, points, (("a", 0),), "b") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("x", 2, 1), {}),
        (("x", 0, 1), {"log": True}),
        (("x", 1, 2), {"log": True, "step": 0.5}),
        (("x", 0.5, 2), {"int": True}),
        (("x", "low", 2), {}),
        (("x", []), {}),
        (("x", [1, 2]), {"log": True}),
        (("x", "abc"), {}),
        (("", 0, 1), {}),
        (("x", 0, math.inf), {}),
    ],
)
def test_a_wrong_call_shows_a_right_one(arguments, named):
    with pytest.raises(WrongCall) as error:
        suggest(*arguments, **named)
    assert 'mc.suggest("lr", 1e-5, 1e-1, log=True)' in error.value.hint


def test_outside_of_a_sweep_defaults_are_inside_the_range(capsys):
    assert suggest("a", 1, 9, int=True) == 5
    assert suggest("b", 1e-4, 1e-2, log=True) == pytest.approx(1e-3)
    assert suggest("c", ["first", "second"]) == "first"
    assert suggest("d", 0, 10, step=4) in (4, 8)
    said = capsys.readouterr().err
    assert [f"{name} is" in said for name in "abcd"] == [True] * 4
    assert json.dumps(suggest("a", 1, 9, int=True)) == "5"
    assert capsys.readouterr().err == ""


class Adam:
    """Stands for any object of a list of choices."""


def test_fixed_parameters_are_what_a_cell_gets_outside_of_a_sweep(capsys):
    fix_parameters({"lr": 0.004, "layers": 3, "optimizer": "Adam", "flag": True, "width": 64})
    assert suggest("lr", 1e-5, 1e-1, log=True) == 0.004
    assert json.dumps(suggest("layers", 1, 8, int=True)) == "3"
    assert suggest("optimizer", [dict, Adam]) is Adam
    assert suggest("flag", [1, True]) is True
    assert suggest("width", [32, 64]) == 64
    assert capsys.readouterr().err == ""
    for wrong in (lambda: suggest("lr", 1e-5, 1e-3), lambda: suggest("width", [128, 256])):
        with pytest.raises(SuggestFailed, match="is fixed"):
            wrong()
    fix_parameters({})
    assert suggest("width", [128, 256]) == 128
    with pytest.raises(WrongCall, match="takes a dict"):
        fix_parameters([("lr", 1)])
