"""Weights & Biases' calls for a run of Minicluster: `import minicluster.compat.wandb as wandb`.

login, init, log, define_metric, watch and finish; config and summary; Image, Histogram and Table. Values go
to mc.log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from minicluster.compat.missing import refusing
from minicluster.train.metrics import log as logging
from minicluster.train.metrics.media import Histogram, Logged, Table
from minicluster.train.metrics.media import Image as Picture

__all__ = [
    "Histogram",
    "Image",
    "Run",
    "Table",
    "config",
    "define_metric",
    "finish",
    "init",
    "log",
    "login",
    "run",
    "summary",
    "watch",
]


class Image(Picture):
    """A picture. The caption and the mode are not kept."""

    def __init__(self, data_or_path: Any, mode: str | None = None, caption: str | None = None) -> None:
        if isinstance(data_or_path, str):
            with open(data_or_path, "rb") as file:  # noqa: PTH123 - as the caller wrote it
                data_or_path = file.read()
        super().__init__(data_or_path)


class Values(MutableMapping[str, Any]):
    """Names with values, also as attributes, which are logged as a table when they change."""

    def __init__(self, table: str) -> None:
        self.__dict__["_table"], self.__dict__["_values"] = table, {}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, other: Any = (), /, allow_val_change: bool | None = None, **named: Any) -> None:
        """Set values. They may be anything that has a text."""
        before = dict(self._values)
        self._values.update(_names(other), **named)
        if self._values and self._values != before:
            rows = [[name, value] for name, value in self._values.items()]
            logging.log({self._table: Table(rows, columns=["name", "value"])})

    def setdefaults(self, other: Mapping[str, Any]) -> None:
        self.update({name: value for name, value in other.items() if name not in self._values})


class Run:
    """What init() returns. step: of the next log() without one."""

    def __init__(self) -> None:
        self.config, self.summary = Values("config"), Values("summary")
        self.step = 0
        self.name = self.id = self.project = ""
        self._open: dict[str, Any] = {}
        self._axes: dict[str, str] = {}

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """Log values at a step; commit=False gathers them for the next call."""
        if step is not None and step != self.step:
            self._send()
            self.step = step
        self._open.update(data)
        if commit or (commit is None and step is None):
            self._send()
            self.step += 1
        elif commit is None:
            self._send()

    def define_metric(self, name: str, step_metric: str | None = None, **_: Any) -> None:
        """Accept an axis. Names are plotted over the step; those that begin with `epoch/` over `epoch`."""

    def watch(self, *_: Any, **__: Any) -> None:
        """Accept a model. Log mc.Histogram(parameter.grad) yourself where you want to see gradients."""

    def finish(self, *_: Any, **__: Any) -> None:
        """Send what log(commit=False) has gathered."""
        self._send()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def _send(self) -> None:
        data, self._open = self._open, {}
        sent = dict(_shown(data))
        if sent:
            logging.log(sent, step=self.step)


run = Run()
config, summary = run.config, run.summary


def init(
    project: str | None = None,
    name: str | None = None,
    config: Mapping[str, Any] | Any = None,
    **_: Any,
) -> Run:
    """Begin to log into this job's run. Other arguments (entity, group, mode, ...) have no meaning here."""
    run.project, run.name = project or "", name or ""
    if config:
        run.config.update(config)
    return run


def log(data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, **_: Any) -> None:
    run.log(data, step, commit)


def login(*_: Any, **__: Any) -> bool:
    """Do nothing: the job has its service's access already."""
    return True


def define_metric(name: str, step_metric: str | None = None, **options: Any) -> None:
    run.define_metric(name, step_metric, **options)


def watch(*models: Any, **options: Any) -> None:
    run.watch(*models, **options)


def finish(*_: Any, **__: Any) -> None:
    run.finish()


def _names(values: Any) -> dict[str, Any]:
    """Return a mapping's items, or the attributes of an argparse Namespace."""
    return dict(vars(values) if hasattr(values, "__dict__") and not isinstance(values, Mapping) else values)


def _shown(data: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what can be shown: lists of pictures have a number each, texts and None are left out."""
    for name, value in data.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping):
            yield from _shown(value, f"{path}/")
        elif isinstance(value, Sequence) and value and all(isinstance(one, Logged) for one in value):
            yield from ((f"{path}/{number}", one) for number, one in enumerate(value))
        elif value is not None and not isinstance(value, str):
            yield path, value


__getattr__ = refusing("wandb", __all__)
