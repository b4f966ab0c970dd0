"""The table of runs, and their curves, from messages of the job service."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import pytest

import minicluster as mc
from minicluster.client.connection import ServiceError
from minicluster.tracking import find, table
from minicluster.tracking.find import PandasMissing
from minicluster.tracking.table import NothingLogged, RunTable
from minicluster.train.calls import WrongCall
from minicluster.wire import Curve, CurveList, JobState, LastValue, Run, RunDetails, RunList, RunOrigin

mpl.use("agg")


def run(number: int, **more: Any) -> Run:
    given = {"name": f"run {number}", "state": JobState.SUCCEEDED, "created_at": 1000.0 + number}
    return Run(id=number, owner="ada", **{**given, **more})


class Service:
    """The job service's answers about 250 runs."""

    def __init__(self) -> None:
        self.all = [run(number) for number in range(250, 0, -1)]
        self.asked: list[Any] = []

    def runs(self, limit: int, offset: int, **query: str) -> RunList:
        self.asked.append((limit, offset, query))
        return RunList(runs=tuple(self.all[offset : offset + limit]), total=len(self.all))

    def run(self, number: int) -> RunDetails:
        if number > 250:
            raise ServiceError(f"there is no run {number}", code="unknown_job")
        return RunDetails(run=run(number), origin=RunOrigin())

    def curves(self, runs: Sequence[int], names: Sequence[str], points: int) -> CurveList:
        self.asked.append(runs)
        curves = tuple(
            Curve(run=one, name=name, step=(0, 1), at=(5.0, 6.0), value=(one, None), points=2)
            for one in runs
            for name in names
            if name in ("loss", "acc")
        )
        return CurveList(curves=curves, started_at=dict.fromkeys(runs, 4.0))


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()
    for module in (find, table):
        # It stands in for the connection of a notebook; tests/service/notebook has the real one.
        monkeypatch.setattr(module, "service_of_notebook", lambda: made)
    return made


def test_runs_are_read_page_by_page(service: Service) -> None:
    found = mc.runs(tag="a", name="resnet", limit=230)
    assert list(found["id"]) == list(range(250, 20, -1))
    query = {"tag": "a", "search": "resnet"}
    assert service.asked == [(100, 0, query), (100, 100, query), (30, 200, query)]
    assert len(mc.runs(limit=1000)) == 250


def test_some_runs_by_their_numbers(service: Service) -> None:
    found = mc.runs([68, 67])
    assert list(found["id"]) == [68, 67]
    assert list(mc.runs(found["id"])["id"]) == [68, 67]
    assert list(mc.runs(5)["id"]) == [5]
    with pytest.raises(ServiceError, match="no run 1000"):
        mc.runs([1000])


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"tags": "a"}, {"ids": ["67"]}])
def test_a_wrong_call_shows_a_right_one(service: Service, wrong: dict[str, Any]) -> None:
    with pytest.raises(WrongCall) as caught:
        mc.runs(**wrong)
    assert "mc.runs([67, 68])" in caught.value.hint


def test_without_pandas_it_is_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr(find.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PandasMissing, match="pandas is not installed"):
        mc.runs()


def test_a_row_has_what_is_known_of_a_run() -> None:
    values = {"loss": LastValue(value=0.5, step=9), "val/acc": LastValue(value=None)}
    first = run(1, started_at=1002.0, ended_at=1063.4, tags=("a", "b"), metrics=values, rerun_of=7)
    found = RunTable.of([first, run(2, state=JobState.QUEUED)])
    assert found["duration"].dt.total_seconds().tolist()[0] == 61
    assert found["duration"].isna().tolist() == [False, True]
    assert found.loc[0, "tags"] == ["a", "b"]
    assert found["rerun_of"].isna().tolist() == [False, True]
    assert found.loc[0, "metrics.loss"] == 0.5
    assert found["metrics.val/acc"].isna().all()
    assert str(found["created"].dt.tz) == "UTC"
    assert list(RunTable.of([])["id"]) == []


def test_curves_are_one_row_per_point(service: Service) -> None:
    found = mc.runs([67, 68]).curves("loss")
    assert found[["run", "metric", "step", "seconds"]].to_numpy().tolist() == [
        [67, "loss", 0, 1],
        [67, "loss", 1, 2],
        [68, "loss", 0, 1],
        [68, "loss", 1, 2],
    ]
    assert found["value"].isna().tolist() == [False, True, False, True]


def test_many_runs_are_asked_for_in_groups(service: Service) -> None:
    mc.runs(range(1, 46)).curves("loss")
    assert [len(one) for one in service.asked] == [20, 20, 5]


def test_a_selection_is_a_table_with_curves(service: Service) -> None:
    chosen = mc.runs(limit=5).sort_values("id").head(2)
    assert isinstance(chosen, RunTable)
    assert set(chosen.curves("loss")["run"]) == {246, 247}
    with pytest.raises(NothingLogged, match="which runs"):
        chosen[["name"]].curves("loss")  # type: ignore[operator]


def test_a_metric_that_nobody_logged_is_told(service: Service) -> None:
    with pytest.raises(NothingLogged, match="None of these 1 runs has logged 'los'"):
        mc.runs([67]).curves("los")


def test_curves_are_drawn_over_one_another(service: Service) -> None:
    axes = mc.runs([67, 68]).plot("loss")
    assert [line.get_label() for line in axes.lines] == ["67 run 67", "68 run 68"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
    both = mc.runs([67]).plot("loss", "acc", axis="time")
    assert [line.get_label() for line in both.lines] == ["67 run 67, loss", "67 run 67, acc"]
    assert list(both.lines[0].get_xdata()) == [1, 2]
    with pytest.raises(ValueError, match="'step' or 'time'"):
        mc.runs([67]).plot("loss", axis="epoch")


def test_the_range_of_each_group_is_drawn() -> None:
    import pandas as pd

    rows = [
        (1, "a", "loss", 0, 0, None, 0.0, 1.0, 0.5, 2.0),
        (1, "a", "loss", 1, 5, None, 1.0, 1.0, None, None),
    ]
    axes = table.draw(pd.DataFrame(rows, columns=list(table._COLUMNS)))
    assert len(axes.collections) == 1
    assert axes.lines[1].get_label() == "1 a, rank 1"


def test_pandas_own_plots_are_there(service: Service) -> None:
    found = mc.runs([67, 68])
    assert found.plot(x="id", y="gpus") is not None
    assert found.plot.scatter("id", "gpus") is not None


def test_a_table_travels_to_the_ranks_without_a_connection(service: Service) -> None:
    found = mc.runs([67])
    assert SimpleNamespace(**vars(pickle.loads(pickle.dumps(found)))).__dict__.get("service") is None
