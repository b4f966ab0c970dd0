"""mc.prepare: makes a model, an optimizer and a loader ready for all ranks."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from minicluster.errors import MiniclusterError
from minicluster.train import fault_tolerant, place
from minicluster.train.balance import rank as balance
from minicluster.train.calls import called_as
from minicluster.train.loaders import share
from minicluster.train.whole import whole

BUCKET_MB = 5
"""Bucket size of DistributedDataParallel. It was the fastest of the measured sizes on a gigabit network,
since sending starts earlier than with torch's 25 MB."""

OptimizerT = TypeVar("OptimizerT", bound=Optimizer)


class NotPreparable(MiniclusterError):
    """mc.prepare() got an object that it cannot make ready."""


@overload
def prepare(model: torch.nn.Module) -> torch.nn.Module: ...
@overload
def prepare(model: torch.nn.Module, optimizer: OptimizerT) -> tuple[torch.nn.Module, OptimizerT]: ...
@overload
def prepare(
    model: torch.nn.Module, optimizer: OptimizerT, loader: DataLoader[Any]
) -> tuple[torch.nn.Module, OptimizerT, DataLoader[Any]]: ...
@overload
def prepare(
    model: torch.nn.Module, *, loader: DataLoader[Any]
) -> tuple[torch.nn.Module, DataLoader[Any]]: ...


@called_as("model, optimizer, loader = mc.prepare(model, optimizer, loader)")
def prepare(model: Any, optimizer: Any = None, loader: Any = None) -> Any:
    """Make ready for all ranks: `model, optimizer, loader = mc.prepare(model, optimizer, loader)`.

    The model goes to mc.device() and, with several ranks, into DistributedDataParallel; the
    optimizer keeps its parameters; the loader gives this rank's share of what its sampler chooses,
    anew in each epoch, with an unchanged batch size on each rank. Batches stay on the CPU: move them with
    `.to(mc.device())`. Returns as many as were given. Raises NotPreparable, LoaderNotDivisible.
    In a fault-tolerant job the ranks come and go, and the loader's shares follow them. With --balance, a
    loader that comes with an optimizer gives faster ranks more samples of each step.
    """
    _check(model, torch.nn.Module, "a model (torch.nn.Module)", "first")
    balanced = optimizer is not None and loader is not None and balance.wanted()
    if balanced:
        _refuse_layers_that_wait(model)
    ready: list[Any] = [_spread(model)]
    if optimizer is not None:
        _check(optimizer, Optimizer, "an optimizer (torch.optim)", "second")
        moved = _moved(optimizer)
        whole().follow(moved)
        ready.append(fault_tolerant.wrapped(moved) if fault_tolerant.wanted() else moved)
    if loader is not None:
        _check(loader, DataLoader, "a loader (torch.utils.data.DataLoader)", "third")
        ready.append(_divided_by_speed(loader, ready[0]) if balanced else share(loader))
    return ready[0] if len(ready) == 1 else tuple(ready)


def _refuse_layers_that_wait(model: torch.nn.Module) -> None:
    if any(isinstance(layer, torch.nn.SyncBatchNorm) for layer in model.modules()):
        raise NotPreparable(
            "--balance cannot measure speeds with SyncBatchNorm: its layers wait for all ranks.",
            "Use BatchNorm, or leave --balance out.",
        )


def _divided_by_speed(loader: DataLoader[Any], model: torch.nn.Module) -> DataLoader[Any]:
    from minicluster.train.balance.loader import share_by_speed
    from minicluster.train.comm.install import follows

    if place.world_size() > 1 and not follows(model):
        raise NotPreparable(
            f"--balance cannot weigh the gradients of a {type(model).__name__}.",
            "Give mc.prepare() the plain model, with parameters that are trained, or leave --balance out.",
        )
    return share_by_speed(loader)


def _spread(model: torch.nn.Module) -> torch.nn.Module:
    if isinstance(model, DistributedDataParallel):
        return model
    model.to(place.torch_device())
    trained = any(parameter.requires_grad for parameter in model.parameters())
    whole().add(model)
    if trained and fault_tolerant.wanted():
        return fault_tolerant.spread(model, place.torch_device(), BUCKET_MB)
    if place.world_size() == 1 or not trained:
        return model
    if not dist.is_initialized():
        raise NotPreparable("mc.prepare() needs a process group.", _why_none())
    devices = [place.torch_device()] if place.torch_device().type == "cuda" else None
    return DistributedDataParallel(
        model, device_ids=devices, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
    )


def _why_none() -> str:
    if place.framework() == "torch":
        return "Call it before destroying the group."
    return f"It is for torch, and this cell was made for {place.framework()}: say --framework torch."


def _moved(optimizer: OptimizerT) -> OptimizerT:
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            # torch deliberately keeps step counters on the CPU.
            if isinstance(value, torch.Tensor) and name != "step":
                state[name] = value.to(parameter.device)
    return optimizer


def _check(value: object, kind: type, words: str, place_word: str) -> None:
    if not isinstance(value, kind):
        raise NotPreparable(
            f"mc.prepare() takes {words} in the {place_word} place, not {type(value).__name__}.",
            "The order is: model, optimizer, loader.",
        )
