"""%%sweep in a notebook's shell, on real agents and ranks."""

from contextlib import suppress

import psutil
import pytest

from minicluster.sweeps.results import NoBestTrial
from minicluster.wire import JobState
from minicluster.wire.sweeps.sweeps import SweepState, TrialState

from ...patience import until
from ...processes import runs

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


def test_a_bad_trial_is_pruned_on_all_its_ranks_at_one_step(sweep, service):
    cell = """
import time, torch, torch.distributed as dist, minicluster as mc
quality = mc.suggest("quality", [0, 1, 2, 3, 4, 99])
for step in range(2000 if quality == 99 else 4):
    dist.all_reduce(torch.ones(1))
    mc.log(step=step, loss=quality + 1.0 / (step + 1))
    print(f"step {step}", flush=True)
    time.sleep(0.02 if quality == 99 else 0)
"""
    found = sweep("--metric loss --search grid --nodes 2 --at-once 1", cell)
    states = {row["quality"]: row["state"] for row in found.rows()}
    assert states == {**dict.fromkeys(range(5), "complete"), 99: "pruned"}
    job = next(row["job"] for row in found.rows() if row["quality"] == 99)
    steps = [service.log(job, rank, 1 << 20)[0].count("step") for rank in (0, 1)]
    assert abs(steps[0] - steps[1]) <= 1, "one of them printed that it was pruned"
    assert steps[0] < 1900
    assert found.best.params == {"quality": 0}


@pytest.mark.full("a minute of waiting")
def test_ranks_that_never_log_are_stopped_when_rank_0_leaves(sweep, service):
    cell = """
import time, minicluster as mc
quality = mc.suggest("quality", [0, 1, 2, 3, 4, 99])
for step in range(3000 if quality == 99 else 2):
    if mc.rank() == 0:
        mc.log(step=step, loss=quality)
    time.sleep(0.02 if quality == 99 else 0)
"""
    found = sweep("--metric loss --search grid --nodes 2 --at-once 1", cell)
    last = found.rows()[-1]
    assert (last["quality"], last["state"]) == (99, "pruned")
    assert service.job(last["job"]).state is JobState.STOPPED


def test_a_sweep_goes_on_when_the_service_was_killed(cluster, notebook, service):
    cell = """
import time, minicluster as mc
x = mc.suggest("x", 0.0, 1.0)
for step in range(20):
    mc.log(step=step, loss=x)
    time.sleep(0.05)
"""
    found = notebook.run(f"%%sweep --metric loss --trials 5 --at-once 2 --prune none --detach\n{cell}")
    until(lambda: any(row["value"] is not None for row in found.rows()))
    before = {row["trial"]: row["x"] for row in found.rows() if "x" in row}
    cluster.kill()
    cluster.start()
    notebook.run(f"%distribute attach sweep-{found.id}")
    rows = notebook.names["sweep"].rows()
    assert [row["state"] for row in rows] == ["complete"] * 5
    assert len({row["x"] for row in rows}) == 5
    assert {row["trial"]: row["x"] for row in rows if row["trial"] in before} == before
    assert all(row["value"] == row["x"] for row in rows)


def test_a_repeated_attempt_gets_the_same_parameters(cluster, notebook, service):
    cell = """
import time, minicluster as mc
x = mc.suggest("x", 0.0, 1.0)
print(f"drawn {x!r}", flush=True)
time.sleep(600)
"""
    found = notebook.run(f"%%sweep --metric loss --trials 1 --detach\n{cell}")
    until(lambda: found.rows() and "x" in found.rows()[0])
    row = found.rows()[0]
    node = service.job(row["job"]).nodes[0]
    for process in list(cluster.tasks()):
        with suppress(psutil.NoSuchProcess):
            if runs(process, "minicluster.runtime.agent") and process.environ()["MINICLUSTER_NODE"] == node:
                process.kill()
    until(lambda: service.job(row["job"]).attempt == 2, 120)
    until(lambda: f"drawn {row['x']!r}" in service.log(row["job"], 0, 1 << 20)[0], 120)
    found.stop()
    notebook.run(f"%distribute attach sweep-{found.id}")
    assert (found.state, found.rows()[0]["x"]) == (SweepState.STOPPED, row["x"])
