"""Train a notebook's cell on all machines of a cluster: `%load_ext minicluster`, then `%%distribute`.

Inside a cell: `import minicluster as mc`, then mc.prepare, mc.log, mc.progress, mc.checkpoint,
mc.resume, mc.data, mc.output, mc.rank, mc.world_size, mc.local_rank, mc.device. Importing this package
imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from minicluster.train.checkpoint import checkpoint
    from minicluster.train.folders import data, output
    from minicluster.train.logs import log
    from minicluster.train.place import device, local_rank, rank, world_size
    from minicluster.train.prepare import prepare
    from minicluster.train.progress import progress
    from minicluster.train.resume import resume

__all__ = [
    "checkpoint",
    "data",
    "device",
    "local_rank",
    "log",
    "output",
    "prepare",
    "progress",
    "rank",
    "resume",
    "world_size",
]


def __getattr__(name: str) -> Any:
    """Import a helper when it is first used."""
    modules = {
        "prepare": "prepare",
        "checkpoint": "checkpoint",
        "resume": "resume",
        "log": "logs",
        "data": "folders",
        "output": "folders",
        "progress": "progress",
        "rank": "place",
        "world_size": "place",
        "local_rank": "place",
        "device": "place",
    }
    if name not in modules:
        raise AttributeError(f"minicluster has no {name!r}; it has {', '.join(sorted(modules))}")
    return getattr(import_module(f".train.{modules[name]}", __name__), name)


def __dir__() -> list[str]:
    """Let Tab show only what a cell may call."""
    return __all__


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register `%%distribute` and `%distribute`; `%load_ext minicluster` calls this."""
    from minicluster.magics import load_ipython_extension as load

    load(shell)
