"""mc.explain: what of a model is where, what a step sends for it, and how long that takes on the network.

Bytes follow from the collectives that torch's strategies make: of a ring of n ranks, an all-gather and a
reduce-scatter send (n-1)/n of what is put together from each rank, an all-reduce twice that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.optim import Optimizer

from minicluster.display.tables import Table
from minicluster.dry_run.predict import Link
from minicluster.train import place
from minicluster.train.calls import called_as
from minicluster.train.comm import rank as comm
from minicluster.train.comm.links import own_links
from minicluster.train.snapshots.state import plain_model
from minicluster.train.strategies.divided import Divided, StagedModel, divided_of
from minicluster.train.strategies.layout import nodes_of_ranks
from minicluster.train.strategies.plans import SEQUENCE
from minicluster.wire.comm import ASYNC, AUTO, METHODS, CommMethod

_HEADS = ("part", "parameters", "where", "weights", "gradients", "optimizer", "sent in a step", "takes")
_LATER = "after a step"
Sent = tuple[float, float]
"""Bytes that a rank sends in a step, and how often a message waits for the network."""


@dataclass(frozen=True)
class Explanation:
    """A model's parts as a table. strategy: how it was divided. notes: sentences about the figures."""

    strategy: str
    table: Table
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "\n".join([f'strategy="{self.strategy}"', "", repr(self.table), "", *self.notes])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f'<p>strategy="{escape(self.strategy)}"</p>{self.table._repr_html_()}{notes}'


@dataclass
class Group:
    """Some parameters that are placed alike.

    whole_bytes: of all of them, undivided. here_bytes: of a rank's weights. trained_bytes: those of them that
    get gradients. sends: None: only a step shows it. leaves: whether it leaves the node. later: what stands
    for what is not known.
    """

    name: str
    count: int
    where: str
    whole_bytes: int
    here_bytes: int
    trained_bytes: int
    optimizer_bytes: int | None = None
    sends: Sent | None = (0.0, 0)
    leaves: bool = False
    later: str = _LATER

    def row(self, link: Link) -> tuple[str, ...]:
        optimizer = self.later if self.optimizer_bytes is None else size(self.optimizer_bytes)
        sent = self.later if self.sends is None else size(self.sends[0])
        return (
            self.name,
            f"{self.count:,}",
            self.where,
            size(self.here_bytes),
            size(self.trained_bytes),
            optimizer,
            sent,
            self._takes(link),
        )

    def _takes(self, link: Link) -> str:
        if self.sends is None:
            return self.later
        if not self.sends[0]:
            return "-"
        seconds = self.sends[0] / link.bytes_s + self.sends[1] * link.latency_s
        return _duration(seconds) if self.leaves else "within a node"


@called_as("mc.explain(model, optimizer)")
def explain(
    model: Any, optimizer: Optimizer | None = None, *, link: float | None = None, measure: bool = False
) -> Explanation:
    """Show what of a model is where and what it costs: `mc.explain(model)`, in a cell or in the notebook.

    link: what two nodes exchange, in Gbit/s; 1 by default. measure: measure it, between the nodes; then all
    ranks call it. Memory is that of this rank; what activations take comes on top of it.
    """
    known = _measured() if measure else link
    rate = Link(known=False) if known is None else Link(known, known=True)
    divided = divided_of(model)
    groups = list(_groups_of(divided, optimizer) if divided else _undivided(model, optimizer))
    rows = tuple(group.row(rate) for group in groups)
    table = Table(_HEADS, (*rows, _total(groups, rate)), "")
    notes = tuple(_notes(divided, rate, optimizer, measured=measure and known is not None))
    return Explanation(divided.strategy if divided else _plain_name(), table, notes)


def _measured() -> float | None:
    """Return the slowest link between two nodes; None if there is one node only. All ranks call it."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    nodes = nodes_of_ranks()
    leaders = [nodes.index(node) for node in dict.fromkeys(nodes)]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own_links(dist.group.WORLD, leaders))
    return min((one.gbit_s for links in found for one in links), default=None)


def _plain_name() -> str:
    return comm.followed().name if comm.is_followed() else "ddp"


# The groups of each strategy.


def _undivided(model: nn.Module, optimizer: Optimizer | None) -> Iterator[Group]:
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else place.world_size()
    plain = model.model if isinstance(model, StagedModel) else plain_model(model)
    parameters = list(plain.parameters())
    trained = sum(one.nbytes for one in parameters if one.requires_grad)
    yield Group(
        name="the model",
        count=sum(one.numel() for one in parameters),
        where="whole on each rank" if ranks > 1 else "here",
        whole_bytes=sum(one.nbytes for one in parameters),
        here_bytes=sum(one.nbytes for one in parameters),
        trained_bytes=trained,
        optimizer_bytes=_optimizer_bytes(optimizer, parameters),
        sends=_sent_by_method(comm.followed(), trained, ranks),
        leaves=ranks > 1,
    )


def _sent_by_method(method: CommMethod, size_bytes: int, ranks: int) -> Sent:
    """Return what a rank with a whole model sends in a step: gradients, or each period what has changed."""
    if method.name in ("bf16", "fp16"):
        return _all_reduce(size_bytes / 2, ranks)
    if "period" not in METHODS[method.name]:
        return _all_reduce(size_bytes, ranks)
    period = method.whole("period")
    change = size_bytes / 2 if method["sent"] == "bf16" else size_bytes
    if method.name != ASYNC:
        sent, messages = _all_reduce(change, ranks)
        return sent / period, messages / period
    # The first rank answers each other one with the weights.
    sent = size_bytes * (ranks - 1) if place.rank() == 0 else change
    return sent / period, 2 / period


def _groups_of(divided: Divided, optimizer: Optimizer | None) -> Iterator[Group]:
    if divided.strategy == "pipeline":
        yield from _stages(divided, optimizer)
        return
    left = _first_names(divided)
    for pattern in divided.plan:
        some = [name for name in left if _is_in(name, str(pattern))]
        left = [name for name in left if name not in some]
        if some:
            yield _group(divided, str(pattern), some, optimizer, planned=True)
    if left:
        yield _group(divided, "the rest", left, optimizer, planned=False)


def _first_names(divided: Divided) -> list[str]:
    return [name for name in divided.whole.sizes if name in divided.parameters]


def _is_in(parameter: str, pattern: str) -> bool:
    """Return whether a parameter belongs to a module that a pattern means."""
    wanted, parts = pattern.split("."), parameter.split(".")
    return len(parts) > len(wanted) and all(
        want in ("*", part) for want, part in zip(wanted, parts[: len(wanted)], strict=True)
    )


def _group(
    divided: Divided, name: str, names: Sequence[str], optimizer: Optimizer | None, *, planned: bool
) -> Group:
    parameters = [divided.parameters[one] for one in names]
    trained = [one for one in parameters if one.requires_grad]
    whole = sum(divided.whole.sizes[one] for one in names)
    sends, leaves = _sent(divided, name, whole, planned=planned)
    return Group(
        name=name,
        count=sum(one.numel() for one in parameters),
        where=_where(divided, name, planned=planned),
        whole_bytes=whole,
        here_bytes=sum(map(_local_bytes, parameters)),
        trained_bytes=sum(map(_local_bytes, trained)),
        optimizer_bytes=_optimizer_bytes(optimizer, parameters),
        sends=sends,
        leaves=leaves,
    )


def _where(divided: Divided, name: str, *, planned: bool) -> str:
    mesh = divided.layout.mesh
    if planned and isinstance(divided.plan, dict) and divided.plan[name] == SEQUENCE:
        return f"whole on each rank, which computes 1/{mesh.shape[-1]} of the sequence"
    if divided.strategy == "tensor":
        return f"{_cut(divided, name)}1/{mesh.size()} on each rank" if planned else "whole on each rank"
    if "tensor" in (mesh.mesh_dim_names or ()):
        groups, each = mesh.shape
        cut = f"{_cut(divided, name)}1/{each} of it " if planned else ""
        return f"{cut}divided over {groups} groups"
    if divided.strategy == "hybrid":
        return f"1/{mesh.shape[1]} on each rank of a group, {mesh.shape[0]} groups"
    return f"1/{mesh.size()} on each rank"


def _cut(divided: Divided, name: str) -> str:
    how = divided.plan[name]
    return f"by {how}s, " if isinstance(how, str) else f"by {type(how).__name__}, "


def _sent(divided: Divided, name: str, whole: int, *, planned: bool) -> tuple[Sent | None, bool]:
    """Return what a rank sends for a group in a step, and whether it leaves the node."""
    layout = divided.layout
    names = layout.mesh.mesh_dim_names or ()
    cuts = _sent_by_cuts(divided, name) if planned else (0.0, 0)
    if divided.strategy == "tensor":
        return cuts, layout.crosses_nodes("tensor")
    if "tensor" in names:
        # The part of a group; the model's own parameters are whole in each of them.
        sent = _sent_by_fsdp(divided, "data", whole / layout.mesh.shape[1] if planned else whole, gathers=2)
        parts = [(sent, layout.crosses_nodes("data")), (cuts, layout.crosses_nodes("tensor"))]
    else:
        # The model's own group stays gathered between forward and backward pass.
        sent = _sent_by_fsdp(divided, "shard", whole, gathers=2 if planned else 1)
        parts = [(sent, layout.crosses_nodes("shard"))]
        if "replicate" in names:
            copies, each = layout.mesh.shape
            parts.append((_all_reduce(whole / each, copies), layout.crosses_nodes("replicate")))
    return _between_nodes(parts)


def _between_nodes(parts: Sequence[tuple[Sent | None, bool]]) -> tuple[Sent | None, bool]:
    """Add up what leaves the node, if anything does: within a node it takes no time that counts."""
    leaves = any(leaving for _, leaving in parts)
    counted = [sent for sent, leaving in parts if leaving or not leaves]
    known = [sent for sent in counted if sent is not None]
    return (_sum(*known) if len(known) == len(counted) else None), leaves


def _sent_by_fsdp(divided: Divided, name: str, size_bytes: float, *, gathers: int) -> Sent:
    ranks = len(divided.layout.ranks_of(name))
    times = gathers * _narrower(divided) + 1
    return size_bytes * _share(ranks) * times, (gathers + 1) * (ranks - 1)


def _sent_by_cuts(divided: Divided, pattern: str) -> Sent | None:
    sizes = [seen for name, seen in divided.seen.items() if _is_in(f"{name}.weight", pattern)]
    cuts = "tensor" in (divided.layout.mesh.mesh_dim_names or ())
    ranks = len(divided.layout.ranks_of("tensor")) if cuts else 1
    if not sizes:
        return None if ranks > 1 else (0.0, 0)
    return _sum(*(_all_reduce(one, ranks) for one in sizes))


def _stages(divided: Divided, optimizer: Optimizer | None) -> Iterator[Group]:
    pipeline: Any = divided.pipeline and divided.pipeline()
    names = pipeline.names if pipeline is not None else []
    for number, parts in enumerate(names):
        own = [name for name in divided.whole.sizes if any(name.startswith(f"{part}.") for part in parts)]
        whole = sum(divided.whole.sizes[name] for name in own)
        mine = pipeline is not None and number == pipeline.number
        first, last = parts[0], parts[-1]
        here = [divided.parameters[name] for name in own if name in divided.parameters]
        yield Group(
            name=first if first == last else f"{first} to {last}",
            count=sum(divided.whole.counts[name] for name in own),
            where=f"stage {number}" + (", this rank" if mine else ""),
            whole_bytes=whole,
            here_bytes=whole,
            trained_bytes=whole,
            optimizer_bytes=_optimizer_bytes(optimizer, here) if mine else None,
            sends=_sent_by_stage(divided) if mine else None,
            leaves=divided.layout.crosses_nodes("stage"),
            later=_LATER if mine else "see its rank",
        )


def _sent_by_stage(divided: Divided) -> Sent | None:
    if not divided.seen:
        return None
    messages = 2 * sum(size_bytes > 0 for size_bytes in divided.seen.values())
    return float(sum(divided.seen.values())), messages


def _narrower(divided: Divided) -> float:
    """Return by what gathered weights are smaller than the kept ones: half in 16 bits."""
    given = divided.options.mixed_precision
    dtype = given.param_dtype if isinstance(given, MixedPrecisionPolicy) else given
    return 0.5 if dtype in (torch.bfloat16, torch.float16, "bf16", "fp16") else 1.0


def _optimizer_bytes(optimizer: Optimizer | None, parameters: Sequence[nn.Parameter]) -> int | None:
    """Return the bytes of an optimizer's state; None if it is not known yet."""
    if optimizer is None or not any(one in optimizer.state for one in parameters):
        return None
    values = (value for one in parameters for value in optimizer.state.get(one, {}).values())
    return sum(_local_bytes(value) for value in values if isinstance(value, torch.Tensor))


def _local_bytes(tensor: Any) -> int:
    return tensor.to_local().nbytes if hasattr(tensor, "to_local") else tensor.nbytes


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


def _all_reduce(size_bytes: float, ranks: int) -> Sent:
    return 2 * _share(ranks) * size_bytes, 2 * (ranks - 1)


def _sum(*parts: Sent) -> Sent:
    return sum(one for one, _ in parts), sum(messages for _, messages in parts)


# Words.


def _total(groups: Sequence[Group], link: Link) -> tuple[str, ...]:
    here = [group for group in groups if "this rank" in group.where] or groups
    known = [group.sends for group in here if group.sends is not None]
    optimizers = [group.optimizer_bytes for group in here if group.optimizer_bytes is not None]
    total = Group(
        name="this rank",
        count=sum(group.count for group in groups),
        where="",
        whole_bytes=sum(group.whole_bytes for group in groups),
        here_bytes=sum(group.here_bytes for group in here),
        trained_bytes=sum(group.trained_bytes for group in here),
        optimizer_bytes=sum(optimizers) if optimizers else None,
        sends=_sum(*known) if len(known) == len(here) else None,
        leaves=any(group.leaves for group in here),
    )
    return total.row(link)


def _notes(
    divided: Divided | None, link: Link, optimizer: Optimizer | None, *, measured: bool
) -> Iterator[str]:
    how = "measured between the slowest two nodes" if measured else "as given"
    rate = f"{link.gbit_s:.3g} Gbit/s between nodes, "
    guess = "a guess: mc.explain(model, link=2.5) says another, measure=True measures it"
    yield f"{rate}{how if link.known else guess}. Times are those of the network, as if nothing overlapped."
    if divided is None and comm.followed().name in (AUTO, "powersgd"):
        yield f"{comm.followed().name} sends at most that."
    if optimizer is None:
        yield "mc.explain(model, optimizer) shows the optimizer's memory, too."
    options = divided.options if divided else None
    if options and options.activation_checkpointing:
        yield "Blocks are computed again in the backward pass, so their activations are not kept."
    if options and options.cpu_offload:
        on_cpu = place.torch_device().type == "cpu"
        yield "The ranks compute on the CPU: nothing is offloaded." if on_cpu else "Parts wait in CPU memory."
    if divided and divided.strategy == "pipeline":
        yield "A stage's gradients and optimizer are where its weights are. A step also tells the loss."


def size(size_bytes: float) -> str:
    """Return a number of bytes in words."""
    for unit, divisor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= divisor:
            return f"{size_bytes / divisor:.3g} {unit}"
    return f"{size_bytes:.0f} B"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
