"""mc.prepare: makes a model, an optimizer and a loader ready for all ranks."""

from __future__ import annotations

from typing import Any, TypeVar, Unpack, overload

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from minicluster.errors import MiniclusterError
from minicluster.train import fault_tolerant, place
from minicluster.train.balance import rank as balance
from minicluster.train.calls import called_as
from minicluster.train.comm import rank as comm
from minicluster.train.loaders import share
from minicluster.train.strategies.divided import StagedModel, divided_of, strategy_of
from minicluster.train.strategies.options import (
    APART,
    DDP,
    DIVIDING,
    GivenOptions,
    StrategyImpossible,
    StrategyOptions,
)
from minicluster.train.whole import whole

BUCKET_MB = 5
"""Bucket size of DistributedDataParallel. It was the fastest of the measured sizes on a gigabit network,
since sending starts earlier than with torch's 25 MB."""

OptimizerT = TypeVar("OptimizerT", bound=Optimizer)


class NotPreparable(MiniclusterError):
    """mc.prepare() got an object that it cannot make ready."""


@overload
def prepare(
    model: torch.nn.Module,
    *,
    loader: DataLoader[Any],
    strategy: str = ...,
    **options: Unpack[GivenOptions],
) -> tuple[torch.nn.Module, DataLoader[Any]]: ...
@overload
def prepare(
    model: torch.nn.Module, *, strategy: str = ..., **options: Unpack[GivenOptions]
) -> torch.nn.Module: ...
@overload
def prepare(
    model: torch.nn.Module,
    optimizer: OptimizerT,
    *,
    strategy: str = ...,
    **options: Unpack[GivenOptions],
) -> tuple[torch.nn.Module, OptimizerT]: ...
@overload
def prepare(
    model: torch.nn.Module,
    optimizer: OptimizerT,
    loader: DataLoader[Any],
    *,
    strategy: str = ...,
    **options: Unpack[GivenOptions],
) -> tuple[torch.nn.Module, OptimizerT, DataLoader[Any]]: ...


@called_as("model, optimizer, loader = mc.prepare(model, optimizer, loader)")
def prepare(
    model: Any,
    optimizer: Any = None,
    loader: Any = None,
    *,
    strategy: str = DDP,
    plan: Any = None,
    mixed_precision: Any = None,
    activation_checkpointing: Any = None,
    cpu_offload: Any = None,
    group_size: int | None = None,
    microbatches: int | None = None,
    schedule: str | None = None,
    example: Any = None,
    period: int | None = None,
) -> Any:
    """Make ready for all ranks: `model, optimizer, loader = mc.prepare(model, optimizer, loader)`.

    The model goes to mc.device() and, with several ranks, into DistributedDataParallel; the
    optimizer keeps its parameters; the loader gives this rank's share of what its sampler chooses,
    anew in each epoch, with an unchanged batch size on each rank. Batches stay on the CPU: move them with
    `.to(mc.device())`. Returns as many as were given. Raises NotPreparable, LoaderNotDivisible.
    In a fault-tolerant job the ranks come and go, and the loader's shares follow them. With --balance, a
    loader that comes with an optimizer gives faster ranks more samples of each step.

    strategy: "fsdp", "tensor", "pipeline" or "hybrid" divide the model among the ranks, in place; the
    optimizer stays the same object, with the divided parameters in its groups. mc.explain(model) shows what
    is where. "localsgd", "diloco" and "async" let ranks train whole models apart, with an average each
    `period` steps.
    plan: what is divided, like what mc.plan(model, strategy) returns. mixed_precision: torch.bfloat16, or
    torch's MixedPrecisionPolicy. activation_checkpointing: True, or names of modules that are computed again
    in the backward pass. cpu_offload: True, or torch's OffloadPolicy. group_size: ranks that divide a model
    (hybrid: those of a node by default), or the stages of a pipeline (all ranks by default). microbatches,
    schedule ("1f1b", "gpipe"), example (of inputs): of a pipeline. Raises StrategyImpossible.
    """
    _check(model, torch.nn.Module | StagedModel, "a model (torch.nn.Module)", "first")
    _check(optimizer, Optimizer | None, "an optimizer (torch.optim)", "second")
    _check(loader, DataLoader | None, "a loader (torch.utils.data.DataLoader)", "third")
    given = {
        "plan": plan,
        "mixed_precision": mixed_precision,
        "activation_checkpointing": activation_checkpointing,
        "cpu_offload": cpu_offload,
        "group_size": group_size,
        "microbatches": microbatches,
        "schedule": schedule,
        "example": example,
        "period": period,
    }
    options = StrategyOptions.of(strategy, given)
    if (before := strategy_of(model)) is not None:
        return _again(model, optimizer, loader, strategy, before)
    if strategy in DIVIDING:
        return _divided(model, optimizer, loader, strategy, options)
    if strategy in APART and place.world_size() > 1:
        _refuse_other_way(model, strategy)
        comm.follow_strategy(strategy, options.period)
    return _replicated(model, optimizer, loader)


def _replicated(model: Any, optimizer: Any, loader: Any) -> Any:
    balanced = optimizer is not None and loader is not None and balance.wanted()
    if balanced:
        _refuse_layers_that_wait(model)
    ready: list[Any] = [_spread(model)]
    if optimizer is not None:
        moved = _moved(optimizer)
        whole().follow(moved)
        ready.append(fault_tolerant.wrapped(moved) if fault_tolerant.wanted() else moved)
    if loader is not None:
        ready.append(_divided_by_speed(loader, ready[0]) if balanced else share(loader))
    return ready[0] if len(ready) == 1 else tuple(ready)


def _again(model: Any, optimizer: Any, loader: Any, strategy: str, before: str) -> Any:
    """Return what is divided already, as it is; the loader gets the shares that go with it."""
    if strategy not in (DDP, before):
        raise StrategyImpossible(
            f"The model is divided by strategy={before!r}: strategy={strategy!r} cannot change that.",
            "Give mc.prepare() the plain model.",
        )
    known = divided_of(model)
    if known is not None and known.pipeline is not None:
        model = known.pipeline() or model
    ready: list[Any] = [model, *([] if optimizer is None else [optimizer])]
    if loader is not None:
        ready.append(share(loader, known.layout.share if known else None))
    return ready[0] if len(ready) == 1 else tuple(ready)


def _refuse_other_way(model: Any, strategy: str) -> None:
    """Raise NotPreparable if a model's ranks take each step together already."""
    if isinstance(model, DistributedDataParallel):
        from minicluster.train.comm.install import follows

        if not follows(model):
            raise NotPreparable(
                f"The model is in DistributedDataParallel already: strategy={strategy!r} cannot change it.",
                "Give mc.prepare() the plain model.",
            )


def _divided(model: Any, optimizer: Any, loader: Any, strategy: str, options: StrategyOptions) -> Any:
    # Importing it takes half a second, which a plain training does not need.
    from minicluster.train.strategies.divide import divided_model

    whole().add(model)
    trained, its_share = divided_model(model, optimizer, loader, strategy, options)
    ready: list[Any] = [trained]
    if optimizer is not None:
        whole().follow(optimizer)
        ready.append(optimizer)
    if loader is not None:
        ready.append(share(loader, its_share))
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
        raise NotPreparable("mc.prepare() needs a process group.", place.why_no_group())
    devices = [place.torch_device()] if place.torch_device().type == "cuda" else None
    return DistributedDataParallel(
        model, device_ids=devices, bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True
    )


def _moved(optimizer: OptimizerT) -> OptimizerT:
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            # torch deliberately keeps step counters on the CPU.
            if isinstance(value, torch.Tensor) and name != "step":
                state[name] = value.to(parameter.device)
    return optimizer


def _check(value: object, kind: Any, words: str, place_word: str) -> None:
    if not isinstance(value, kind):
        raise NotPreparable(
            f"mc.prepare() takes {words} in the {place_word} place, not {type(value).__name__}.",
            "The order is: model, optimizer, loader.",
        )
