"""strategy="fsdp": a rank holds a part of each parameter, and gathers a block only while it computes it.

It is torch's fully_shard (FSDP2), which also runs on CPUs with Gloo.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from minicluster.train import place
from minicluster.train.strategies.divided import Divided, WholeForm
from minicluster.train.strategies.layout import Layout, one_line
from minicluster.train.strategies.options import StrategyImpossible, StrategyOptions
from minicluster.train.strategies.plans import (
    chosen_blocks,
    is_on_meta,
    matching,
    shared_parameters,
    shortened,
)

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def divide(model: nn.Module, options: StrategyOptions) -> Divided:
    """Divide each parameter among all ranks. Raises StrategyImpossible."""
    layout = one_line("shard", same_samples=False)
    return shard(model, layout, layout.mesh, options, "fsdp")


def shard(
    model: nn.Module, layout: Layout, mesh: DeviceMesh, options: StrategyOptions, strategy: str
) -> Divided:
    """Divide a model's parameters along a mesh, block by block. Raises StrategyImpossible."""
    names = blocks_to_shard(model, options.plan)
    _refuse_scalars(model)
    whole = WholeForm(model)
    recompute(model, options.activation_checkpointing, names)
    wrap(model, names, mesh, options)
    if is_on_meta(model):
        _give_memory(model, mesh, options)
    whole.note_what_was_added(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    whole.free()
    return Divided(
        strategy=strategy,
        layout=layout,
        options=options,
        plan=list(shortened(model, dict.fromkeys(names, ""))),
        whole=whole,
        state=state_of(model),
        parameters=parameters,
    )


def state_of(model: nn.Module) -> Any:
    """Return a function that returns the model's state_dict, without keeping the model alive."""
    reference = weakref.ref(model)

    def state() -> dict[str, Any]:
        there = reference()
        return {} if there is None else there.state_dict()

    return state


def blocks_to_shard(model: nn.Module, plan: Any) -> list[str]:
    """Return the blocks whose parameters are gathered at once. Raises StrategyImpossible.

    Blocks that share a parameter with the rest of the model are left to it, unless the user's plan has them.
    """
    names = chosen_blocks(model, plan)
    for shared in shared_parameters(model).values():
        owners = {_owner(name, names) for name in shared}
        if len(owners) > 1 and plan is not None:
            raise StrategyImpossible(
                f"{' and '.join(shared)} are one parameter, but the plan gathers them apart.",
                f"Leave {' and '.join(sorted(owners - {''}))} out of the plan.",
            )
        if len(owners) > 1:
            names = [name for name in names if name not in owners]
    return names


def _owner(parameter: str, names: Sequence[str]) -> str:
    """Return the innermost block that holds a parameter; "" for the model itself."""
    return max((name for name in names if parameter.startswith(f"{name}.")), key=len, default="")


def _refuse_scalars(model: nn.Module) -> None:
    scalars = [name for name, parameter in model.named_parameters() if parameter.dim() == 0]
    if scalars:
        raise StrategyImpossible(
            f"{', '.join(scalars)} has no dimension that could be divided.",
            "Make it a parameter of one element: nn.Parameter(torch.ones(1)).",
        )


def wrap(model: nn.Module, names: Sequence[str], mesh: DeviceMesh, options: StrategyOptions) -> None:
    """Call torch's fully_shard on the blocks, the inner ones first, and then on the rest."""
    more: dict[str, Any] = {"mesh": mesh}
    if options.mixed_precision is not None:
        more["mp_policy"] = _precision(options.mixed_precision)
    if options.cpu_offload and place.torch_device().type != "cpu":
        given = options.cpu_offload
        more["offload_policy"] = given if isinstance(given, OffloadPolicy) else CPUOffloadPolicy()
    for name in sorted(names, key=lambda name: -name.count(".")):
        fully_shard(model.get_submodule(name), **more)
    fully_shard(model, **more)


def _precision(given: Any) -> MixedPrecisionPolicy:
    if isinstance(given, MixedPrecisionPolicy):
        return given
    dtype = _DTYPES.get(given, given)
    if not isinstance(dtype, torch.dtype):
        raise StrategyImpossible(
            f"mixed_precision={given!r} is no type of numbers.",
            "Give torch.bfloat16, torch.float16, or torch.distributed.fsdp.MixedPrecisionPolicy(...).",
        )
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def recompute(model: nn.Module, wanted: Any, names: Iterable[str]) -> None:
    """Let blocks forget their activations and compute them again in the backward pass.

    wanted: True for all of `names`, or a list of names and patterns. Raises StrategyImpossible.
    """
    if not wanted:
        return
    chosen = names if wanted is True else [name for pattern in wanted for name in matching(model, pattern)]
    for name in chosen:
        checkpoint(model.get_submodule(name))


# Models that were made without memory.


def _give_memory(model: nn.Module, mesh: DeviceMesh, options: StrategyOptions) -> None:
    """Give a model of the meta device its parts' memory, and draw their values by `reset_parameters`."""
    for name, module in model.named_modules():
        if not _draws_all(module):
            raise StrategyImpossible(
                f"{name or 'The model'} is on the meta device, and no reset_parameters() gives it values.",
                "Give its class one, or make the model without the meta device.",
            )
    model.to_empty(device=torch.device("cpu") if options.cpu_offload else place.torch_device())
    seed = [torch.initial_seed() % (1 << 62)]
    dist.broadcast_object_list(seed, src=0)
    part = mesh.get_local_rank("shard")
    with torch.random.fork_rng(), torch.no_grad():
        # Parts of one parameter draw their own numbers; copies of a part draw the same.
        torch.manual_seed(seed[0] + part)
        for module in model.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()


def _draws_all(module: nn.Module) -> bool:
    """Return whether a module can draw all that it holds itself; only torch's own do so with buffers."""
    holds = next(module.parameters(recurse=False), None) is not None
    buffers = next(module.buffers(recurse=False), None) is not None
    of_torch = any(kind.__module__.startswith("torch.nn.modules") for kind in type(module).__mro__[:3])
    draws = callable(getattr(module, "reset_parameters", None)) and (of_torch or not buffers)
    return draws or not (holds or buffers)
