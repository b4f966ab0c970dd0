"""Train a notebook's cell on all machines of a cluster: `%load_ext minicluster`, then `%%distribute`.

Inside a cell: `import minicluster as mc`, then mc.prepare, mc.log, mc.progress, mc.checkpoint,
mc.resume, mc.average_weights, mc.plan, mc.explain, mc.gather, mc.clip_grad_norm_, mc.comm, mc.suggest,
mc.fix_parameters, mc.data, mc.output, mc.rank, mc.world_size, mc.local_rank, mc.device. In a notebook,
mc.runs() is the table of your runs. Importing this package imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from minicluster.tracking.find import runs
    from minicluster.train.checkpoint import checkpoint
    from minicluster.train.comm.rank import average_weights
    from minicluster.train.folders import data, output
    from minicluster.train.metrics.log import log
    from minicluster.train.metrics.media import Histogram, Image, Table
    from minicluster.train.metrics.profile import profile
    from minicluster.train.objects import comm
    from minicluster.train.place import device, local_rank, rank, world_size
    from minicluster.train.prepare import prepare
    from minicluster.train.progress import progress
    from minicluster.train.resume import resume
    from minicluster.train.strategies.explain import explain
    from minicluster.train.strategies.gather import gather
    from minicluster.train.strategies.optimizers import clip_grad_norm_
    from minicluster.train.strategies.plans import plan
    from minicluster.train.suggest import fix_parameters, suggest

__all__ = [
    "Histogram",
    "Image",
    "Table",
    "average_weights",
    "checkpoint",
    "clip_grad_norm_",
    "comm",
    "data",
    "device",
    "explain",
    "fix_parameters",
    "gather",
    "local_rank",
    "log",
    "output",
    "plan",
    "prepare",
    "profile",
    "progress",
    "rank",
    "resume",
    "runs",
    "suggest",
    "world_size",
]


def __getattr__(name: str) -> Any:
    """Import a helper when it is first used."""
    modules = {
        "prepare": "train.prepare",
        "checkpoint": "train.checkpoint",
        "average_weights": "train.comm.rank",
        "comm": "train.objects",
        "resume": "train.resume",
        "log": "train.metrics.log",
        "data": "train.folders",
        "output": "train.folders",
        "progress": "train.progress",
        "rank": "train.place",
        "world_size": "train.place",
        "local_rank": "train.place",
        "device": "train.place",
        "runs": "tracking.find",
        "profile": "train.metrics.profile",
        "Histogram": "train.metrics.media",
        "Image": "train.metrics.media",
        "Table": "train.metrics.media",
        "clip_grad_norm_": "train.strategies.optimizers",
        "explain": "train.strategies.explain",
        "gather": "train.strategies.gather",
        "plan": "train.strategies.plans",
        "fix_parameters": "train.suggest",
        "suggest": "train.suggest",
    }
    if name not in modules:
        raise AttributeError(f"minicluster has no {name!r}; it has {', '.join(sorted(modules))}")
    helper = globals()[name] = getattr(import_module(f".{modules[name]}", __name__), name)
    return helper


def __dir__() -> list[str]:
    """Let Tab show only what a cell may call."""
    return __all__


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register `%%distribute` and `%distribute`; `%load_ext minicluster` calls this."""
    from minicluster.magics import load_ipython_extension as load

    load(shell)
