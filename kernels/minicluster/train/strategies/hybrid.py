"""strategy="hybrid": a model is divided within groups of ranks, by default those of a node.

Without a table, each group holds a whole model that it divides like FSDP, and groups average their gradients
(torch's HSDP). With a table of cuts, tensor parallelism divides it within a group, and FSDP across groups.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from minicluster.train.strategies import fsdp, tensor
from minicluster.train.strategies.divided import Divided, WholeForm
from minicluster.train.strategies.layout import grid, share_random_state
from minicluster.train.strategies.options import StrategyImpossible, StrategyOptions
from minicluster.train.strategies.plans import chosen_table, is_on_meta, shortened


def divide(model: nn.Module, options: StrategyOptions) -> Divided:
    """Divide a model within and across groups of ranks. Raises StrategyImpossible."""
    if isinstance(options.plan, Mapping):
        return _with_tensors(model, options)
    layout = grid("replicate", "shard", options.group_size, same_samples=False)
    groups, each = layout.mesh.shape
    if each == 1 and groups > 1:
        raise StrategyImpossible(
            'strategy="hybrid" would divide nothing: a node has one rank, so each rank is a group.',
            'strategy="fsdp" divides the model among all ranks; or give group_size=.',
        )
    return fsdp.shard(model, layout, layout.mesh, options, "hybrid")


def _with_tensors(model: nn.Module, options: StrategyOptions) -> Divided:
    if is_on_meta(model):
        raise StrategyImpossible(
            "A model of the meta device cannot be cut by a table.", 'strategy="fsdp" takes it.'
        )
    layout = grid("data", "tensor", options.group_size, same_samples=True)
    table = chosen_table(model, options.plan, layout.mesh.shape[1])
    whole, begin_checks = WholeForm(model), tensor.checks_of(model, table)
    names = fsdp.blocks_to_shard(model, None)
    fsdp.recompute(model, options.activation_checkpointing, names)
    sizes = tensor.cut(model, layout.mesh["tensor"], table)
    fsdp.wrap(model, names, layout.mesh["data"], options)
    begin_checks()
    share_random_state(layout.mesh.get_group("tensor"))
    whole.note_what_was_added(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    whole.free()
    return Divided(
        strategy="hybrid",
        layout=layout,
        options=options,
        plan=shortened(model, table),
        whole=whole,
        state=fsdp.state_of(model),
        parameters=parameters,
        seen=sizes,
    )
