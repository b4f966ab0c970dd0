"""The notebook's side of sweeps: the line, the table, the result."""

import sys

import pytest

from minicluster.options import OptionWrong
from minicluster.parsing.parser import HelpRequested
from minicluster.sweeps.options import parse_sweep_line
from minicluster.sweeps.results import NoBestTrial, PandasMissing, Sweep
from minicluster.sweeps.view import sweep_html, sweep_table, sweep_text
from minicluster.wire import CountRange
from minicluster.wire.sweeps.sweeps import PruneMethod, SearchMethod, SweepDetails, SweepState, TrialState

from ..wire.wire_sweeps import MESSAGES, SWEEP, TRIAL

DETAILS = SweepDetails.model_validate(MESSAGES[SweepDetails])


def test_a_line_has_options_of_the_search_and_of_each_trial():
    found = parse_sweep_line("--nodes 1:3 --trials 40 --metric val_loss --maximize --seed 7 --timeout 5m")
    settings = found.settings
    assert (settings.metric, settings.trials, settings.maximize, settings.seed) == ("val_loss", 40, True, 7)
    assert (found.cell.nodes, found.cell.timeout_s) == (CountRange(min=1, max=3), 300)
    assert (found.cell.priority, found.cell.seed) == (20, 7)


def test_a_trial_has_one_node_and_there_are_twenty_by_default():
    found = parse_sweep_line("--metric loss")
    assert found.cell.nodes == CountRange(min=1, max=1)
    assert (found.settings.trials, found.settings.search) == (20, SearchMethod.TPE)
    assert found.settings.prune is PruneMethod.MEDIAN
    assert parse_sweep_line("--metric loss --search grid").settings.trials is None
    assert parse_sweep_line("--metric loss --gpus 2").cell.nodes is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--trials 4", "--metric"),
        ("--metric loss --minimize --maximize", "exclude"),
        ("--metric loss --trials 0", "0"),
        ("--metric loss --search best", "best"),
        ("--metric loss --fault-tolerant", "--fault-tolerant"),
        ("--metric loss --trails 4", "--trials"),
    ],
)
def test_a_wrong_line_says_what_is_right(line, told):
    with pytest.raises(OptionWrong) as error:
        parse_sweep_line(line)
    assert told in str(error.value)


def test_help_lists_the_options_of_both():
    with pytest.raises(HelpRequested) as asked:
        parse_sweep_line("--help")
    assert all(name in str(asked.value) for name in ("--metric", "--prune", "--nodes", "--seed"))


def test_the_view_names_the_best_trial_and_escapes_what_users_wrote():
    evil = SWEEP | {"name": "<script>alert(1)</script>"}
    details = DETAILS.model_copy(
        update={"sweep": DETAILS.sweep.model_validate(evil | {"error": "<b>", "state": "failed"})}
    )
    html, text = sweep_html(details, "/services/minicluster/sweeps/3"), sweep_text(details)
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "Best: val_loss = 0.25 in trial 12" in text
    assert "17 of 40 trials over, 3 running, 4 pruned" in text
    assert "sweep-3" in repr(sweep_table([details.sweep]))


def sweep(details=DETAILS, names=None):
    return Sweep(None, details, lambda job: names or {"model": job})


def over(**changes):
    stopped = DETAILS.sweep.model_copy(update={"state": SweepState.DONE, **changes})
    return DETAILS.model_copy(update={"sweep": stopped.model_validate(stopped.model_dump())})


def test_the_best_trial_has_its_parameters_and_its_objects():
    best = sweep(over()).best
    assert best.params == {"lr": 0.01, "width": 64, "kind": "wide", "bias": True, "norm": None}
    assert (best.value, best["model"]) == (0.25, 31)
    assert "lr=0.01" in repr(best)


def test_without_a_complete_trial_the_error_says_why():
    failed = DETAILS.trials[0].model_copy(update={"state": TrialState.FAILED, "error": "no luck"})
    details = over(best=None).model_copy(update={"trials": (failed,)})
    with pytest.raises(NoBestTrial, match="no luck"):
        _ = sweep(details).best


def test_rows_have_a_column_for_each_parameter():
    own = DETAILS.trials[0].model_copy(update={"params": {"lr": 0.1, "value": 3}})
    (row,) = sweep(over().model_copy(update={"trials": (own,)})).rows()
    assert row == {
        "trial": 12,
        "state": "complete",
        "value": TRIAL["value"],
        "step": 9.0,
        "lr": 0.1,
        "params.value": 3,
        "seconds": 1.5,
        "job": 31,
    }


def test_without_pandas_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PandasMissing, match="rows"):
        _ = sweep(over()).trials
