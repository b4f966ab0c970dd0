"""Optimizers of divided models: they keep their groups, and get the divided parameters; clipping."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.optim import Optimizer

from minicluster.pickling.optimizers import own_attributes
from minicluster.train import place
from minicluster.train.calls import called_as
from minicluster.train.strategies.divided import (
    Divided,
    DividedOptimizer,
    StagedModel,
    divided_of,
    note_part,
)
from minicluster.train.strategies.options import StrategyImpossible


def check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    """Raise StrategyImpossible if an optimizer cannot take other parameters than it was made with."""
    known = {id(parameter) for parameter in model.parameters()}
    if any(id(one) not in known for group in optimizer.param_groups for one in group["params"]):
        raise StrategyImpossible(
            "The optimizer has parameters that the model does not have.",
            "Make one from the model that is divided: torch.optim.AdamW(model.parameters()).",
        )
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, value in own_attributes(optimizer).items():
        inside = value if isinstance(value, list | tuple | set) else (value,)
        if any(id(one) in held for one in inside):
            raise StrategyImpossible(
                f"{type(optimizer).__name__} keeps its parameters in `{name}`, too: it cannot be divided.",
                "Take an optimizer that keeps them in its groups only: AdamW, SGD.",
            )


def adopt(optimizer: Optimizer, divided: Divided) -> None:
    """Put the divided parameters into the optimizer's groups, in the place of the whole ones.

    It stays the same object with the same groups, so that a scheduler goes on with it. State that it has
    already is divided like its parameter. Parameters that another rank holds leave its groups.
    """
    names = {id(one): name for name, one in reversed(list(divided.whole.parameters.items()))}
    groups: list[tuple[str, ...]] = []
    state = dict(optimizer.state)
    optimizer.state.clear()
    for group in optimizer.param_groups:
        whole = list(group["params"])
        groups.append(tuple(names[id(one)] for one in whole))
        group["params"].clear()
        for parameter in whole:
            here = divided.parameters.get(names[id(parameter)])
            if here is not None:
                group["params"].append(here)
                if parameter in state:
                    optimizer.state[here] = _divided_state(state[parameter], here)
    divided.optimizers.append(DividedOptimizer(weakref.ref(optimizer), tuple(groups)))
    note_part(optimizer)


def _divided_state(state: Mapping[str, Any], here: nn.Parameter) -> dict[str, Any]:
    return {name: _like(value, here) if _fits(value, here) else value for name, value in state.items()}


def _fits(value: object, here: nn.Parameter) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == here.shape and value.dim() > 0


def _like(value: torch.Tensor, here: nn.Parameter) -> torch.Tensor:
    if not isinstance(here, DTensor):
        return value.to(here.device)
    moved = value.to(here.to_local().device)
    return distribute_tensor(moved, here.device_mesh, here.placements, src_data_rank=None)


@called_as("mc.clip_grad_norm_(model, 1.0)")
def clip_grad_norm_(model: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Clip the gradients by the norm of the whole model: `mc.clip_grad_norm_(model, 1.0)` on all ranks.

    It is torch.nn.utils.clip_grad_norm_ for a model of any strategy; the norm counts the parts of all ranks.
    Returns the norm before clipping, the same on all ranks.
    """
    divided = divided_of(model)
    if divided is None:
        whole = model.model if isinstance(model, StagedModel) else model
        return torch.nn.utils.clip_grad_norm_(whole.parameters(), max_norm, norm_type)
    parts = [
        (_summed(one), _copies(one, divided)) for one in _unique(divided.parameters) if one.grad is not None
    ]
    # Alike on all ranks, also on one whose stage has no parameters.
    found = torch.zeros((), dtype=torch.float64, device=place.torch_device())
    for grad, copies in parts:
        local = _local(grad)
        if not local.numel():
            continue
        wide = torch.promote_types(local.dtype, torch.float32)
        local = torch.linalg.vector_norm(local, norm_type, dtype=wide).to(found.device)
        found = torch.maximum(found, local) if norm_type == torch.inf else found + local**norm_type / copies
    largest = norm_type == torch.inf
    dist.all_reduce(found, op=dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
    norm = found if largest else found ** (1.0 / norm_type)
    # As torch does it: a step without waiting for the GPU.
    ratio = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for grad, _ in parts:
        _local(grad).mul_(ratio.to(grad.device, grad.dtype))
    return norm


def _unique(parameters: Mapping[str, nn.Parameter]) -> list[nn.Parameter]:
    return list({id(one): one for one in parameters.values()}.values())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _summed(parameter: nn.Parameter) -> torch.Tensor:
    """Return a gradient whose parts have been added up: that of a sequence's norm waits for it."""
    grad: Any = parameter.grad
    if isinstance(grad, DTensor) and any(one.is_partial() for one in grad.placements):
        grad = parameter.grad = grad.redistribute(placements=[Replicate()] * grad.device_mesh.ndim)
    return grad


def _copies(parameter: nn.Parameter, divided: Divided) -> int:
    """Return how many ranks hold the same part of a parameter."""
    if not isinstance(parameter, DTensor):
        return divided.copies
    parts = 1
    for dimension, placement in enumerate(parameter.placements):
        if not placement.is_replicate():
            parts *= parameter.device_mesh.size(dimension)
    return dist.get_world_size() // parts
