"""Code written for Weights & Biases or MLflow, with another import."""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minicluster.compat.mlflow as mlflow
import minicluster.compat.wandb as wandb
from minicluster.compat.missing import NotInAdapter
from minicluster.wire import Record

from .conftest import Read


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each test begin with a new run, as each rank does."""
    run = wandb.Run()
    for name, value in (("run", run), ("config", run.config), ("summary", run.summary)):
        monkeypatch.setattr(wandb, name, value)
    monkeypatch.setattr(mlflow, "_run", mlflow.ActiveRun())


def numbers(found: list[Record]) -> list[tuple[float | None, dict[str, float]]]:
    return [(record.step, record.values) for record in found if record.kind == "log"]


def table(record: Record) -> tuple[str, Any]:
    assert record.media is not None
    return record.media.name, json.loads(base64.b64decode(record.media.content))["rows"]


def test_wandb_counts_steps_as_wandb_does(records: Read) -> None:
    run = wandb.init(project="cats", name="first", config={"lr": 0.1})
    wandb.log({"loss": 3.0})
    wandb.log({"loss": 2.0, "text": "left out"}, commit=False)
    wandb.log({"accuracy": 0.5})
    run.log({"val": {"loss": 1.0}}, step=10)
    wandb.log({"loss": 0.5})
    wandb.finish()
    found = records()
    assert table(found[0]) == ("config", [["lr", 0.1]])
    assert numbers(found) == [
        (0.0, {"loss": 3.0}),
        (1.0, {"loss": 2.0, "accuracy": 0.5}),
        (10.0, {"val/loss": 1.0}),
        (10.0, {"loss": 0.5}),
    ]


def test_wandb_config_is_read_by_name_and_attribute(records: Read) -> None:
    with wandb.init(config=argparse.Namespace(lr=0.1, layers=[2, 3])) as run:
        run.config.update({"seed": 7})
        wandb.config.batch = 32
    assert (wandb.config.lr, wandb.config["seed"], dict(run.config)["layers"]) == (0.1, 7, [2, 3])
    assert table(records()[-1])[1][-1] == ["batch", 32]
    with pytest.raises(AttributeError):
        wandb.config.nothing  # noqa: B018


def test_wandb_pictures_and_tables(records: Read) -> None:
    pictures = [wandb.Image(np.zeros((2, 2)), caption="cat"), wandb.Image(np.ones((2, 2)))]
    wandb.log({"samples": pictures, "h": wandb.Histogram([1, 2]), "t": wandb.Table([[1]], columns=["a"])})
    names = [record.media.name for record in records() if record.media]
    assert names == ["samples/0", "samples/1", "h", "t"]


def test_mlflow_metrics_and_params(records: Read) -> None:
    mlflow.set_experiment("cats")
    with mlflow.start_run(run_name="first", tags={"kind": "test"}):
        mlflow.log_param("lr", 0.1)
        mlflow.log_params({"layers": 3})
        mlflow.log_metric("loss", 2.0, step=1)
        mlflow.log_metrics({"loss": 1.0, "accuracy": 0.5}, step=2)
    found = records()
    assert numbers(found) == [(1.0, {"loss": 2.0}), (2.0, {"loss": 1.0, "accuracy": 0.5})]
    tables = [table(record) for record in found if record.kind == "media"]
    assert tables[0] == ("tags", [["kind", "test"]])
    assert tables[-1] == ("params", [["lr", 0.1], ["layers", 3]])


def test_mlflow_files_go_into_the_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICLUSTER_OUTPUT", str(tmp_path / "output"))
    (tmp_path / "model.pt").write_text("weights")
    mlflow.log_artifact(str(tmp_path / "model.pt"), "models")
    mlflow.log_text("hello", "../notes/a.txt")
    there = sorted(path.relative_to(tmp_path / "output") for path in (tmp_path / "output").rglob("*.*"))
    assert there == [Path("_/notes/a.txt"), Path("models/model.pt")]


@pytest.mark.parametrize(
    ("module", "name", "has"), [(wandb, "sweep", "define_metric"), (mlflow, "autolog", "log_param")]
)
def test_an_unknown_function_names_what_is_there(module: Any, name: str, has: str) -> None:
    with pytest.raises(NotInAdapter, match=f"has no '{name}'; it has .*{has}"):
        getattr(module, name)()
