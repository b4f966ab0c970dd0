"""strategy="tensor": the weights of linear layers are cut, and all ranks compute each sample together.

It is torch's parallelize_module. A layer that is cut by columns gives each rank some of its outputs; the one
after it, cut by rows, adds up what the ranks have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.func import functional_call
from torch.utils import _pytree

from minicluster.train import place
from minicluster.train.strategies.divided import Divided, WholeForm
from minicluster.train.strategies.fsdp import recompute, state_of
from minicluster.train.strategies.layout import one_line, share_random_state
from minicluster.train.strategies.options import StrategyImpossible, StrategyOptions
from minicluster.train.strategies.plans import (
    COLUMN,
    ROW,
    SEQUENCE,
    blocks,
    chosen_table,
    is_on_meta,
    shortened,
    without_memory,
)


class _WholeThroughSequence(SequenceParallel):
    """A norm that computes on a part of the sequence; what it gets and gives is whole."""

    @staticmethod
    def _take(placements: Any, _module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        given = inputs[0]
        if not isinstance(given, DTensor):
            given = DTensor.from_local(given, mesh, [Replicate()], run_check=False)
        return given.redistribute(placements=placements)

    @staticmethod
    def _give(_module: nn.Module, outputs: Any, _mesh: DeviceMesh) -> Any:
        return outputs.redistribute(placements=[Replicate()]).to_local()

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        take = partial(self._take, self.sequence_sharding)
        return distribute_module(module, device_mesh, self._replicate_module_fn, take, self._give)


_STYLES = {COLUMN: ColwiseParallel, ROW: RowwiseParallel, SEQUENCE: _WholeThroughSequence}


def divide(model: nn.Module, options: StrategyOptions) -> Divided:
    """Cut a model's layers into one part for each rank. Raises StrategyImpossible."""
    if is_on_meta(model):
        raise StrategyImpossible(
            "A model of the meta device cannot be cut by a table.", 'strategy="fsdp" takes it.'
        )
    layout = one_line("tensor", same_samples=True)
    table = chosen_table(model, options.plan, dist.get_world_size())
    whole, begin_checks = WholeForm(model), checks_of(model, table)
    recompute(model, options.activation_checkpointing, blocks(model))
    sizes = cut(model, layout.mesh, table)
    model.to(place.torch_device())
    begin_checks()
    share_random_state(layout.mesh.get_group())
    whole.note_what_was_added(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    uncut = set(parameters.values())
    whole.free(keep=lambda parameter: parameter in uncut)
    return Divided(
        strategy="tensor",
        layout=layout,
        options=options,
        plan=shortened(model, table),
        whole=whole,
        state=state_of(model),
        parameters=parameters,
        copies=dist.get_world_size(),
        seen=sizes,
    )


def cut(model: nn.Module, mesh: DeviceMesh, table: Mapping[str, Any]) -> dict[str, int]:
    """Cut the layers of a table. Returns a dict that gets the bytes that each adds up in a forward pass."""
    sizes: dict[str, int] = {}
    # Its short cut for evaluation takes the weights as they are, without their hooks.
    torch.backends.mha.set_fastpath_enabled(False)
    for name, how in table.items():
        parallelize_module(model, mesh, {name: _style(name, how)}, src_data_rank=None)
        _note_size(name, model.get_submodule(name), how, sizes)
    return sizes


def _style(name: str, how: Any) -> ParallelStyle:
    if isinstance(how, ParallelStyle):
        return how
    if how not in _STYLES:
        raise StrategyImpossible(
            f"The plan says {how!r} of {name}.",
            f"It is one of {', '.join(_STYLES)}, or a style of torch.distributed.tensor.parallel.",
        )
    return _STYLES[how]()


def _note_size(name: str, module: nn.Module, how: Any, sizes: dict[str, int]) -> None:
    """Note at the first forward pass how much a layer's ranks have to add up."""

    def note(_module: nn.Module, inputs: Any, output: Any) -> None:
        handle.remove()
        # By columns, it is the gradient of what comes in; by rows, what goes out.
        whole = inputs[0] if how == COLUMN and inputs else output
        if isinstance(whole, torch.Tensor):
            sizes[name] = whole.numel() * whole.element_size()

    handle = module.register_forward_hook(note)


# Checks each block that is cut, once, against the same block with whole weights. A reshape with the model's
# own number of heads computes something else on some of the heads, without an error: so the first batch
# goes through each block twice.


_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
_OF_OTHERS = 5e-2


class CutChangesResult(StrategyImpossible):
    """A block computes something else with cut weights."""


def checks_of(model: nn.Module, table: Mapping[str, Any]) -> Callable[[], None]:
    """Prepare to check the blocks of a table. Call it before the weights are cut, and then what it returns.

    The check comes before all other hooks of a block: those that gather weights, or that recompute.
    """
    names = dict.fromkeys(_unit(cut, blocks(model)) for cut in table)
    prepared = [(name, model.get_submodule(name)) for name in names]
    copies = [without_memory(block).eval() for _, block in prepared]

    def begin() -> None:
        for (name, block), whole in zip(prepared, copies, strict=True):
            _check_at_first_use(name, block, whole)

    return begin


def _unit(name: str, names: list[str]) -> str:
    """Return the block that a layer is in; without one, the module that holds it."""
    outer = [one for one in names if name.startswith(f"{one}.")]
    return min(outer, key=len) if outer else name.rpartition(".")[0]


def _check_at_first_use(name: str, block: nn.Module, whole: nn.Module) -> None:
    def check(module: nn.Module, args: Any, named: Any) -> None:
        handle.remove()
        modes = {part: part.training for part in module.modules()}
        module.eval()
        try:
            with torch.no_grad():
                _compare(name, module(*args, **named), _computed_whole(module, whole, args, named))
        finally:
            for part, mode in modes.items():
                part.training = mode

    handle = block.register_forward_pre_hook(check, prepend=True, with_kwargs=True)


def _computed_whole(module: nn.Module, whole: nn.Module, args: Any, named: Any) -> Any:
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    gathered = {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in state.items()}
    return functional_call(whole, gathered, args, named)


def _compare(name: str, divided: Any, whole: Any) -> None:
    for one, other in zip(_tensors(divided), _tensors(whole), strict=False):
        if one.shape != other.shape:
            raise _other_result(name, f"it gives {tuple(one.shape)} in place of {tuple(other.shape)}")
        size = float(other.abs().max()) if other.numel() else 0.0
        difference = float((one - other).abs().max()) if other.numel() else 0.0
        if not difference <= _TOLERANCE.get(one.dtype, _OF_OTHERS) * max(size, 1e-3):
            raise _other_result(name, f"values up to {size:.3g} differ by {difference:.3g}")


def _tensors(value: Any) -> list[torch.Tensor]:
    found = _pytree.tree_leaves(value)
    return [one.detach() for one in found if isinstance(one, torch.Tensor) and one.is_floating_point()]


def _other_result(name: str, words: str) -> CutChangesResult:
    return CutChangesResult(
        f"With this plan, {name or 'the model'} computes something else in parts than whole: {words}.",
        "A reshape with a fixed number of heads does that: write x.view(batch, length, -1, head_size). "
        "Or leave the layers of that block out of the plan.",
    )
