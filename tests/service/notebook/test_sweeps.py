"""%%sweep in a notebook's shell, on real agents and ranks."""

import pytest

from minicluster.sweeps.results import NoBestTrial
from minicluster.wire.sweeps.sweeps import SweepState, TrialState

CELL = """
import minicluster as mc
x = mc.suggest("x", -2.0, 2.0)
kind = mc.suggest("kind", ["plain", "shifted"])
shift = mc.suggest("shift", 0, 3, int=True) if kind == "shifted" else 0
for step in range(3):
    mc.log(step=step, loss=(x - 1) ** 2 + shift + 1.0 / (step + 1))
model = {"x": x, "kind": kind}
"""


@pytest.fixture
def sweep(notebook):
    def run(line, cell=CELL):
        notebook.run(f"%%sweep {line}\n{cell}")
        return notebook.names["sweep"]

    return run


def test_a_sweep_finds_good_parameters_and_brings_the_best_trials_objects(sweep, notebook, capsys):
    found = sweep("--metric loss --trials 8 --minimize --seed 1")
    assert found.state is SweepState.DONE
    rows = found.rows()
    assert [row["trial"] for row in rows] == list(range(8))
    assert len({row["x"] for row in rows}) == 8
    best = found.best
    assert best.value == min(row["value"] for row in rows if row["state"] == "complete")
    assert best["model"] == {"x": best.params["x"], "kind": best.params["kind"]}
    assert {"shift" in row for row in rows if row["kind"] == "plain"} <= {False}
    assert "x" not in notebook.names, "the trials' names stay on the ranks"
    assert "8 of 8 trials over" in capsys.readouterr().out
    assert f"sweep-{found.id}" in repr(notebook.run("%distribute sweeps"))


def test_a_grid_runs_each_combination_once(sweep):
    cell = """
import minicluster as mc
a = mc.suggest("a", [1, 2, 3])
b = mc.suggest("b", 0, 1, int=True) if a != 2 else 7
mc.log(score=a * 10 + b)
"""
    found = sweep("--metric score --maximize --search grid", cell)
    assert sorted(row["value"] for row in found.rows()) == [10, 11, 27, 30, 31]
    assert found.best.params == {"a": 3, "b": 1}


def test_trials_that_fail_end_the_sweep_and_say_why(sweep):
    found = sweep("--metric loss --trials 9", "raise ValueError('no luck')")
    assert found.state is SweepState.FAILED
    assert "no luck" in found.details.sweep.error
    assert len(found.rows()) < 9
    with pytest.raises(NoBestTrial, match="no luck"):
        _ = found.best


def test_a_sweep_is_stopped_with_its_trials(notebook, service):
    found = notebook.run("%%sweep --metric loss --trials 5 --detach\nimport time\ntime.sleep(600)")
    notebook.run(f"%distribute stop sweep-{found.id}")
    notebook.run(f"%distribute attach sweep-{found.id}")
    assert found.state is SweepState.STOPPED
    assert {trial.state for trial in found.details.trials} <= {TrialState.STOPPED}
    assert all(service.job(trial.job).state.terminal for trial in found.details.trials)
