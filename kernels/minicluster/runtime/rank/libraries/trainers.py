"""Ranks of torch, and libraries on it: these use the job's ranks, and start no processes.

The libraries know torchrun's environment, but some first check for a GPU or for their own arguments, and
without these treat each rank as a single process. This module imports none of them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch

from minicluster.errors import MiniclusterError
from minicluster.runtime.rank.imports import after_import
from minicluster.runtime.rank.libraries.base import RankLibrary, ReportWaiting
from minicluster.runtime.rank.libraries.jax import Jax
from minicluster.wire import RunOrder

_USE_CPU = "ACCELERATE_USE_CPU"
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_ACCELERATE_LAUNCHERS = ("notebook_launcher", "debug_launcher")
_LIGHTNING_LAUNCHERS = (
    "lightning.fabric.strategies.launchers.multiprocessing",
    "lightning.pytorch.strategies.launchers.multiprocessing",
    "lightning_fabric.strategies.launchers.multiprocessing",
    "pytorch_lightning.strategies.launchers.multiprocessing",
)


class RanksAreThere(MiniclusterError):
    """A cell had a library start training processes inside of a rank."""


class Torch(RankLibrary):
    """Ranks of torch: their process group is made before the cell. JAX beside it finds its ranks, too."""

    trains_with_torch = True

    def __init__(self, order: RunOrder, local_rank: int) -> None:
        super().__init__(order, local_rank)
        self._jax = Jax(order, local_rank)

    def prepare(self) -> None:
        prepare()
        self._jax.offer()

    def before_names(self, pickled: bytes) -> None:
        self._jax.before_names(pickled)

    def meet(self, report_waiting: ReportWaiting) -> None:
        self._jax.meet(report_waiting)

    def end(self, report_waiting: ReportWaiting) -> None:
        self._jax.end(report_waiting)

    def abandon(self) -> None:
        self._jax.abandon()


def prepare() -> None:
    """Make the libraries use the ranks; call this once torchrun's environment is set."""
    for name, value in _defaults().items():
        os.environ.setdefault(name, value)
    after_import("accelerate.state", _join_on_cpu)
    after_import("accelerate.launchers", _refuse_accelerate_launchers)
    for name in _LIGHTNING_LAUNCHERS:
        after_import(name, _refuse_lightning_launcher)


def _defaults() -> dict[str, str]:
    """Return the libraries' defaults for arguments that the cell leaves out."""
    nodes, devices = os.environ["GROUP_WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"]
    lightning = {"PL_TRAINER_NUM_NODES": nodes, "PL_TRAINER_DEVICES": devices}
    fabric = {"LT_NUM_NODES": nodes, "LT_DEVICES": devices}
    accelerate = {} if torch.cuda.is_available() else {_USE_CPU: "true"}
    return {**lightning, **fabric, **accelerate}


def _join_on_cpu(state: ModuleType) -> None:
    """Make PartialState() respect the variable that Accelerator() respects."""
    make = state.PartialState.__init__

    @wraps(make)
    def made(self: Any, cpu: bool = False, **more: Any) -> None:
        make(self, cpu or os.environ.get(_USE_CPU, "").lower() in _TRUE, **more)

    state.PartialState.__init__ = made


def _refuse_accelerate_launchers(launchers: ModuleType) -> None:
    for name in _ACCELERATE_LAUNCHERS:
        setattr(launchers, name, _refusing(getattr(launchers, name)))


def _refusing(launch: Callable[..., None]) -> Callable[..., None]:
    """Wrap a launcher: with num_processes=1 it calls the function; any other call is refused."""

    @wraps(launch)
    def refuse(*args: Any, **named: Any) -> None:
        asked = inspect.signature(launch).bind(*args, **named).arguments
        if asked.get("num_processes") == 1:
            return launch(*args, **named)
        raise RanksAreThere(
            f"{launch.__name__}() starts processes to train on: in a distributed cell they are there.",
            f"Call {getattr(asked['function'], '__name__', 'the function')}() itself, or launch it with "
            "num_processes=1: then each rank calls it.",
        )

    return refuse


def _refuse_lightning_launcher(launchers: ModuleType) -> None:
    def refuse(*_args: Any, **_named: Any) -> None:
        raise RanksAreThere(
            "Lightning's strategies ddp_notebook, ddp_fork and ddp_spawn start processes to train on: "
            "in a distributed cell they are there.",
            'Leave strategy= out, or say strategy="ddp".',
        )

    launchers._MultiProcessingLauncher.__init__ = refuse
