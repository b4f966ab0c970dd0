"""Models in DistributedDataParallel when their process group is made anew, after a cell broke it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_SYNC_BYTES = 64 << 20


@dataclass(frozen=True)
class HeldModel:
    """A DistributedDataParallel, and its state apart from the group. name: in the cells; "": none."""

    name: str
    model: Any
    state: Mapping[str, Any]


def held_models(namespace: Mapping[str, Any]) -> list[HeldModel]:
    """Return the models that use the default group, by name. Call it before the group is destroyed."""
    models = _in_default_group()
    of_models = {id(model) for model in models}
    names = {id(value): name for name, value in sorted(namespace.items()) if id(value) in of_models}
    held = [HeldModel(names.get(id(model), ""), model, model.__getstate__()) for model in models]
    return sorted(held, key=lambda one: one.name)


def has_broken_step() -> bool:
    """Return whether a model's backward pass was left while its gradients were on their way.

    Only a hook of Python can be left there: an interrupt is raised in none of torch's own.
    """
    for model in _in_default_group():
        try:
            model.reducer._check_reducer_finalized()
        except RuntimeError:
            return True
    return False


def _in_default_group() -> list[Any]:
    """Return the models in DistributedDataParallel that use the default group."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    if module is None or not dist.is_initialized():
        return []
    kind, group = module.DistributedDataParallel, dist.group.WORLD
    return [one for one in gc.get_objects() if isinstance(one, kind) and one.process_group is group]


def onto_new_group(held: list[HeldModel]) -> None:
    """Move the models to the new group. Their weights become those of rank 0, if ranks differ by now.

    A rank may have made a step more than another before the cell broke. It is said if it was so.
    """
    for one in held:
        one.model.__setstate__(dict(one.state))
        for hook, state in one.model._comm_hooks:
            dist._register_comm_hook(one.model.reducer, state, hook)  # pyright: ignore
    named = [one for one in held if one.name]
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, [(one.name, _sums(one.model)) for one in named])
    names = [[name for name, _ in models] for models in told]
    if any(others != names[0] for others in names):
        return
    for number, one in enumerate(named):
        if len({models[number][1] for models in told}) > 1:
            _take_rank_0s(one)


def _sums(model: Any) -> tuple[float, ...]:
    """Return sums that differ between ranks whose weights differ."""
    with torch.no_grad():
        return tuple(float(tensor.double().sum()) for tensor in model.parameters())


def _take_rank_0s(held: HeldModel) -> None:
    from torch.distributed.utils import _sync_module_states

    model = held.model
    _sync_module_states(
        module=model.module,
        process_group=model.process_group,
        broadcast_bucket_size=_SYNC_BYTES,
        src=0,
        params_and_buffers_to_ignore=model.parameters_to_ignore,
    )
    if dist.get_rank() == 0:
        print(  # noqa: T201
            f"The ranks' weights of {held.name} differed after the cell that broke: all have those of rank 0 "
            "now. An optimizer keeps its state, which may be a step ahead.",
        )
