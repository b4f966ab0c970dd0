"""MLflow's calls for a run of Minicluster: `import minicluster.compat.mlflow as mlflow`.

start_run, end_run, active_run, set_experiment, set_tag(s), log_metric(s), log_param(s), log_image, log_table,
log_figure, log_artifact and log_text. Values go to mc.log, files to mc.output().
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minicluster.compat.missing import refusing
from minicluster.train.folders import output
from minicluster.train.metrics import log as logging
from minicluster.train.metrics.media import Image, Table

__all__ = [
    "ActiveRun",
    "active_run",
    "end_run",
    "log_artifact",
    "log_figure",
    "log_image",
    "log_metric",
    "log_metrics",
    "log_param",
    "log_params",
    "log_table",
    "log_text",
    "set_experiment",
    "set_tag",
    "set_tags",
    "start_run",
]


class ActiveRun:
    """What start_run() returns: the job's own run. Its end is the job's."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self.tags: dict[str, Any] = {}

    def __enter__(self) -> ActiveRun:
        return self

    def __exit__(self, *_: object) -> None:
        end_run()


_run = ActiveRun()


def start_run(*_: Any, tags: Mapping[str, Any] | None = None, **__: Any) -> ActiveRun:
    """Return this job's run. Other arguments (experiment_id, nested, ...) have no meaning here."""
    set_tags(tags or {})
    return _run


def active_run() -> ActiveRun:
    return _run


def end_run(*_: Any, **__: Any) -> None:
    """Do nothing: the run ends with its job."""


def set_experiment(*_: Any, **__: Any) -> None:
    """Do nothing: a run belongs to its notebook."""


def log_metric(key: str, value: Any, step: int | None = None, **_: Any) -> None:
    logging.log({key: value}, step=step)


def log_metrics(metrics: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
    logging.log(metrics, step=step)


def log_param(key: str, value: Any, *_: Any, **__: Any) -> Any:
    log_params({key: value})
    return value


def log_params(params: Mapping[str, Any], *_: Any, **__: Any) -> None:
    _run.params.update(params)
    _log_names("params", _run.params)


def set_tag(key: str, value: Any, *_: Any, **__: Any) -> None:
    set_tags({key: value})


def set_tags(tags: Mapping[str, Any], *_: Any, **__: Any) -> None:
    _run.tags.update(tags)
    _log_names("tags", _run.tags)


def log_image(
    image: Any, artifact_file: str = "image", *, key: str | None = None, step: int | None = None, **_: Any
) -> None:
    logging.log({key or artifact_file: Image(image)}, step=step)


def log_figure(figure: Any, artifact_file: str, **_: Any) -> None:
    logging.log({artifact_file: Image(figure)})


def log_table(data: Any, artifact_file: str, *_: Any, **__: Any) -> None:
    logging.log({artifact_file: Table(data)})


def log_text(text: str, artifact_file: str, *_: Any, **__: Any) -> None:
    file = _inside(artifact_file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def log_artifact(local_path: str, artifact_path: str | None = None, *_: Any, **__: Any) -> None:
    """Copy a file into mc.output()."""
    folder = _inside(artifact_path or ".")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(local_path, folder)


def _inside(name: str) -> Path:
    return output() / Path(name.replace("..", "_").lstrip("/"))


def _log_names(table: str, values: Mapping[str, Any]) -> None:
    if values:
        rows = [[name, value] for name, value in values.items()]
        logging.log({table: Table(rows, columns=["name", "value"])})


__getattr__ = refusing("mlflow", __all__)
