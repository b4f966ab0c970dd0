"""What comes back at a cell's end: divided models are whole again on the rank that brings the result."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from minicluster.pickling.sizes import readable_size
from minicluster.train.strategies.divided import Divided, DividedOptimizer, all_divided, forget
from minicluster.train.strategies.gather import State, whole_optimizer_state, whole_state


def put_together(namespace: dict[str, Any], limit_bytes: int) -> None:
    """Make the cell's divided models and their optimizers whole on rank 0. All ranks call it.

    namespace: the cell's names; one of a pipeline becomes that of its model. limit_bytes: of the result; a
    model that is larger stays divided, and the cell's notes say why it did not come.
    """
    if not dist.is_initialized():  # The cell has ended its group, and with it the way to the parts.
        return
    for model, divided in _of_all_ranks():
        if divided.whole.size_bytes > limit_bytes:
            _tell_too_large(namespace, model, divided.whole.size_bytes, limit_bytes)
            continue
        state = whole_state(divided)
        optimizers = [
            (one, whole_optimizer_state(divided, optimizer))
            for one in divided.optimizers
            if (optimizer := one.optimizer()) is not None
        ]
        if state is not None:
            _restore(model, divided, state, optimizers)
            forget(model)
        _name_whole(namespace, model, divided)


def _of_all_ranks() -> list[tuple[nn.Module, Divided]]:
    """Return the divided models that all ranks still have."""
    mine = list(all_divided())
    counts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(counts, [divided.number for _, divided in mine])
    common = set(counts[0]).intersection(*counts[1:])
    return [(model, divided) for model, divided in mine if divided.number in common]


def _restore(
    model: nn.Module,
    divided: Divided,
    state: State,
    optimizers: list[tuple[DividedOptimizer, State | None]],
) -> None:
    divided.whole.restore(model, state)
    whole = divided.whole.parameters
    for known, optimizer_state in optimizers:
        optimizer = known.optimizer()
        if optimizer is None or optimizer_state is None:
            continue
        names = [name for group in known.groups for name in group]
        for group, of_group in zip(optimizer.param_groups, known.groups, strict=True):
            group["params"][:] = [whole[name] for name in of_group]
        optimizer.state.clear()
        for number, values in optimizer_state["state"].items():
            optimizer.state[whole[names[number]]] = values


def _name_whole(namespace: dict[str, Any], model: nn.Module, divided: Divided) -> None:
    """Let names of a pipeline mean its model."""
    pipeline = divided.pipeline and divided.pipeline()
    for name, value in list(namespace.items()):
        if pipeline is not None and value is pipeline:
            namespace[name] = model


def _tell_too_large(
    namespace: Mapping[str, Any], model: nn.Module, size_bytes: int, limit_bytes: int
) -> None:
    if dist.get_rank() == 0:
        name = next((name for name, value in namespace.items() if value is model), "A divided model")
        print(  # noqa: T201
            f"{name} stays on the ranks, divided: whole it has {readable_size(size_bytes)}, and a result may "
            f"have {readable_size(limit_bytes)}. In the cell, on all ranks: state = mc.gather({name}); then "
            'rank 0 saves it: torch.save(state, mc.output() / "model.pt").',
            file=sys.stderr,
        )
