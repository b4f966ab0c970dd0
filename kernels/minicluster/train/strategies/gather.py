"""mc.gather: the whole state of a divided model, on rank 0, in CPU memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from minicluster.train import place
from minicluster.train.calls import called_as
from minicluster.train.snapshots.state import plain_model
from minicluster.train.strategies.divided import Divided, StagedModel, divided_of
from minicluster.train.strategies.options import StrategyImpossible

State = dict[str, Any]


@called_as("state, optimizer_state = mc.gather(model, optimizer)")
def gather(model: Any, optimizer: Optimizer | None = None) -> Any:
    """Bring a model's whole state to rank 0: `state = mc.gather(model)`, on all ranks.

    `state, optimizer_state = mc.gather(model, optimizer)` brings the optimizer's, too. They are what
    state_dict() of the undivided model and optimizer gives, in CPU memory of rank 0; None on other ranks.
    It works with every strategy. One parameter after the other is put together, so that other ranks need
    little memory for it. Raises StrategyImpossible.
    """
    divided = divided_of(model)
    if divided is None:
        states: tuple[State | None, State | None] = _undivided(model, optimizer)
    else:
        whole = whole_state(divided)
        states = whole, whole_optimizer_state(divided, optimizer) if optimizer is not None else None
    return states[0] if optimizer is None else states


def _undivided(model: nn.Module, optimizer: Optimizer | None) -> tuple[State | None, State | None]:
    """Return the states of a model that each rank has whole, or that the cell itself has divided."""
    keep = place.rank() == 0
    whole = model.model if isinstance(model, StagedModel) else plain_model(model)
    state = _copied(whole.state_dict(), keep)
    optimizer_state = None if optimizer is None else _copied(optimizer.state_dict(), keep)
    return (state, optimizer_state) if keep else (None, None)


def _copied(value: Any, keep: bool = True) -> Any:
    """Return a value with whole copies of its tensors, if this rank is to `keep` them. All ranks call it."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone() if keep else None
    if isinstance(value, dict):
        return {key: _copied(part, keep) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(part, keep) for part in value)
    return value


# A divided model. All ranks call these, in the same order.


def whole_state(divided: Divided) -> State | None:
    """Return the model's whole state_dict on rank 0, in its own order; None elsewhere."""
    found = dict(_brought(divided, divided.state(), divided.whole.names))
    return found if dist.get_rank() == 0 else None


def whole_optimizer_state(divided: Divided, optimizer: Optimizer) -> State | None:
    """Return the optimizer's whole state_dict on rank 0; None elsewhere. Raises StrategyImpossible."""
    known = divided.optimizer(optimizer)
    if known is not None:
        groups = known.groups
    elif divided.strategy == "pipeline":
        raise StrategyImpossible(
            "The optimizer was made from a stage: where its parameters are in the whole model is not known.",
            "Make it from the whole model, and give it to mc.prepare(model, optimizer, strategy=...).",
        )
    else:
        groups = tuple(_names_of(divided, group["params"]) for group in optimizer.param_groups)
    names = [name for group in groups for name in group]
    parts = optimizer_parts(divided, optimizer, names)
    keys = sorted({key for found in _from_all(sorted(parts)) for key in found}, key=_in_order(names))
    brought = dict(_brought(divided, {f"{name}/{key}": value for (name, key), value in parts.items()},
                            [f"{name}/{key}" for name, key in keys]))  # fmt: skip
    if dist.get_rank() != 0:
        return None
    state: dict[int, State] = {}
    for name, key in keys:
        state.setdefault(names.index(name), {})[key] = brought[f"{name}/{key}"]
    return {"state": state, "param_groups": list(_groups(optimizer, groups))}


def _names_of(divided: Divided, parameters: Sequence[nn.Parameter]) -> tuple[str, ...]:
    names = {id(one): name for name, one in reversed(list(divided.parameters.items()))}
    return tuple(names[id(one)] for one in parameters)


def optimizer_parts(
    divided: Divided, optimizer: Optimizer, names: Sequence[str]
) -> dict[tuple[str, str], Any]:
    """Return what this rank's optimizer has of each parameter: by its name and the name of the value."""
    found: dict[tuple[str, str], Any] = {}
    for name in names:
        parameter = divided.parameters.get(name)
        if parameter is not None and parameter in optimizer.state:
            found |= {(name, key): value for key, value in optimizer.state[parameter].items()}
    return found


def _in_order(names: Sequence[str]) -> Any:
    places = {name: number for number, name in enumerate(names)}
    return lambda key: (places[key[0]], key[1])


def _groups(optimizer: Optimizer, groups: Sequence[Sequence[str]]) -> Iterator[State]:
    """Yield the groups as state_dict() gives them, with the numbers of parameters in the whole model."""
    begin = 0
    for group, names in zip(optimizer.param_groups, groups, strict=True):
        settings = {key: value for key, value in group.items() if key != "params"}
        yield {**settings, "params": list(range(begin, begin + len(names)))}
        begin += len(names)


class _Part(NamedTuple):
    """What a rank has of a name. whole: all ranks of its mesh put it together. shape: None: no tensor."""

    whole: bool
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None


def _brought(divided: Divided, here: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield on rank 0 each name with its whole value; on other ranks, take part in it."""
    mine = {name: _part(value) for name, value in here.items()}
    everyones = _from_all(mine)
    for name in names:
        owners = [rank for rank, parts in enumerate(everyones) if name in parts]
        if not owners:
            continue
        value = here.get(name)
        if isinstance(value, DTensor):
            value = value.full_tensor()
        source = 0 if 0 in owners else owners[0]
        if source != 0:
            value = _sent(source, value, everyones[source][name])
        if dist.get_rank() == 0:
            # A copy: what a rank trains goes on changing.
            yield name, _copied(value)


def _part(value: Any) -> _Part:
    if isinstance(value, torch.Tensor):
        return _Part(isinstance(value, DTensor), tuple(value.shape), value.dtype)
    return _Part(False, None, None)


def _sent(source: int, value: Any, part: _Part) -> Any:
    """Send a value to rank 0, and return it there."""
    rank = dist.get_rank()
    if part.shape is None:
        told = [value]
        if rank == source:
            dist.send_object_list(told, dst=0)
        elif rank == 0:
            dist.recv_object_list(told, src=source)
        return told[0]
    if rank == source:
        dist.send(value.detach().to(_sending_device()).contiguous(), dst=0)
    elif rank == 0:
        value = torch.empty(part.shape, dtype=part.dtype, device=_sending_device())
        dist.recv(value, src=source)
    return value


def _from_all(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def _sending_device() -> torch.device:
    """Return from where the default group sends: the CPU's memory, if it can."""
    cpu = torch.device("cpu")
    return cpu if cpu in dist.distributed_c10d._get_default_group()._device_types else place.torch_device()
