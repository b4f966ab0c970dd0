"""What mc.prepare does with a `strategy`: divides the model, and fits optimizer and loader to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from minicluster.changes.digest import digest
from minicluster.train import fault_tolerant, place
from minicluster.train.balance import rank as balance
from minicluster.train.comm import rank as comm
from minicluster.train.strategies import chain, fsdp, hybrid, pipeline, tensor
from minicluster.train.strategies.divided import Divided, register
from minicluster.train.strategies.optimizers import adopt, check_optimizer
from minicluster.train.strategies.options import StrategyImpossible, StrategyOptions

Share = tuple[int, int]


def divided_model(
    model: nn.Module,
    optimizer: Optimizer | None,
    loader: DataLoader[Any] | None,
    strategy: str,
    options: StrategyOptions,
) -> tuple[Any, Share | None]:
    """Divide a model, and give the optimizer its parts. Raises StrategyImpossible.

    Returns what the cell trains, and the rank's share of the data: its number, and how many shares there
    are. None: each rank its own. Outside of a job there is nothing to divide.
    """
    check_alone(strategy)
    _check_plain(model, strategy)
    if optimizer is not None:
        check_optimizer(optimizer, model)
    example = options.example
    if strategy == "pipeline" and example is None:
        example = chain.example_of(loader)
    if not dist.is_available() or not dist.is_initialized():
        if place.world_size() > 1:
            raise StrategyImpossible("mc.prepare() needs a process group.", place.why_no_group())
        if strategy == "pipeline":
            return pipeline.alone(model, options, example), None
        return model.to(place.torch_device()), None
    make_equal(model)
    ready, divided = _divide(model, strategy, options, example)
    register(model, divided)
    if optimizer is not None:
        adopt(optimizer, divided)
    return ready, divided.layout.share


def _check_plain(model: nn.Module, strategy: str) -> None:
    if isinstance(model, DistributedDataParallel):
        raise StrategyImpossible(
            f"The model is in DistributedDataParallel: strategy={strategy!r} cannot divide it.",
            "Give mc.prepare() the plain model.",
        )
    if hasattr(model, "_orig_mod"):
        raise StrategyImpossible(
            "torch.compile(model) gave another module, which cannot be divided.",
            "With strategy='fsdp', call model.compile() before mc.prepare(): it changes the model itself. "
            "With the others, leave it out.",
        )


def check_alone(strategy: str) -> None:
    """Raise StrategyImpossible if the job has an option that wants whole models on each rank."""
    asked = {
        "--fault-tolerant": fault_tolerant.wanted(),
        "--balance": balance.wanted(),
        f"--comm {comm.followed()}": comm.is_followed(),
        "--dry-run": "minicluster.dry_run.group" in sys.modules and dist.is_initialized(),
    }
    why = {
        "--fault-tolerant": "lets ranks come and go, of which each must have the whole model",
        "--balance": "weighs the gradients of DistributedDataParallel, which this strategy does not make",
        "--dry-run": "has one real rank, so nothing can be divided",
    }
    for option, given in asked.items():
        if given:
            reason = why.get(option, "is for DistributedDataParallel, which this strategy does not make")
            raise StrategyImpossible(
                f"{option} {reason}.", f"Leave {option.split()[0]} out, or strategy={strategy!r}."
            )


def _divide(model: nn.Module, strategy: str, options: StrategyOptions, example: Any) -> tuple[Any, Divided]:
    if strategy == "pipeline":
        return pipeline.divide(model, options, example)
    room = {"fsdp": fsdp, "tensor": tensor, "hybrid": hybrid}[strategy]
    return model, room.divide(model, options)


def make_equal(model: nn.Module) -> None:
    """Give all ranks the weights of rank 0: each has drawn its own if the cell made the model.

    A model of the notebook is the same on all ranks, so nothing is sent for it.
    """
    state = {name: one for name, one in model.state_dict().items() if isinstance(one, torch.Tensor)}
    if any(tensor.is_meta for tensor in state.values()):
        return
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, _digest(state))
    if len(set(found)) > 1:
        with torch.no_grad():
            for tensor_ in state.values():
                whole = tensor_.detach().to(place.torch_device()).contiguous()
                dist.broadcast(whole, src=0)
                tensor_.copy_(whole)


def _digest(state: Mapping[str, torch.Tensor]) -> bytes:
    parts: list[bytes] = []
    for name, value in state.items():
        flat = value.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy() if flat.numel() else b""
        parts.append(digest(f"{name} {value.dtype} {tuple(value.shape)}".encode()) + digest(data))
    return digest(b"".join(parts))
