"""What comes back at a cell's end: divided models are whole again on the rank that brings the result."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

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
    for found in _of_all_ranks():
        if found.divided.whole.size_bytes > limit_bytes:
            _tell_too_large(namespace, found, limit_bytes)
            continue
        state = whole_state(found.divided)
        states = [whole_optimizer_state(found.divided, optimizer) for _, optimizer in found.optimizers]
        if state is not None:
            _restore(found, state, states)
            forget(found.model)
        _name_whole(namespace, found)


class _Found(NamedTuple):
    """A divided model, and its optimizers."""

    model: nn.Module
    divided: Divided
    optimizers: list[tuple[DividedOptimizer, Optimizer]]

    @property
    def pipeline(self) -> Any:
        """What the cell trains in its place; None if it is the model itself."""
        return self.divided.pipeline and self.divided.pipeline()


def _of_all_ranks() -> list[_Found]:
    """Return the divided models and optimizers that all ranks still have: Python frees some when it likes."""
    mine = [(model, divided, _optimizers_of(divided)) for model, divided in all_divided()]
    here = {(divided.number, number) for _, divided, optimizers in mine for number in (-1, *optimizers)}
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, here)
    common = set.intersection(*everyones)
    return [
        _Found(
            model,
            divided,
            [one for number, one in optimizers.items() if (divided.number, number) in common],
        )
        for model, divided, optimizers in mine
        if (divided.number, -1) in common
    ]


def _optimizers_of(divided: Divided) -> dict[int, tuple[DividedOptimizer, Optimizer]]:
    found = {number: (known, known.optimizer()) for number, known in enumerate(divided.optimizers)}
    return {number: (known, one) for number, (known, one) in found.items() if one is not None}


def _restore(found: _Found, state: State, optimizer_states: list[State | None]) -> None:
    found.divided.whole.restore(found.model, state)
    whole = found.divided.whole.parameters
    for (known, optimizer), optimizer_state in zip(found.optimizers, optimizer_states, strict=True):
        if optimizer_state is None:
            continue
        names = [name for group in known.groups for name in group]
        for group, of_group in zip(optimizer.param_groups, known.groups, strict=True):
            group["params"][:] = [whole[name] for name in of_group]
        optimizer.state.clear()
        for number, values in optimizer_state["state"].items():
            optimizer.state[whole[names[number]]] = values


def _name_whole(namespace: dict[str, Any], found: _Found) -> None:
    """Let names of a pipeline mean its model."""
    pipeline = found.pipeline
    for name, value in list(namespace.items()):
        if pipeline is not None and value is pipeline:
            namespace[name] = found.model


def _tell_too_large(namespace: Mapping[str, Any], found: _Found, limit_bytes: int) -> None:
    if dist.get_rank() != 0:
        return
    ours = [one for one in (found.pipeline, found.model) if one is not None]
    name = next((name for name, value in namespace.items() if any(value is one for one in ours)), "model")
    size_bytes = found.divided.whole.size_bytes
    print(  # noqa: T201
        f"{name} stays on the ranks, divided: whole it has {readable_size(size_bytes)}, and a result may "
        f"have {readable_size(limit_bytes)}. In the cell, on all ranks: state = mc.gather({name}); then "
        'rank 0 saves it: torch.save(state, mc.output() / "model.pt").',
        file=sys.stderr,
    )
