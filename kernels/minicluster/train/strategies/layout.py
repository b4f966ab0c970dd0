"""Which ranks hold a model together, and which of them read the same samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from minicluster.train import place
from minicluster.train.snapshots.state import random_states, set_random_states
from minicluster.train.strategies.options import StrategyImpossible


@dataclass(frozen=True)
class Layout:
    """The ranks as a mesh.

    mesh: its last dimension holds the ranks that divide a model among them. share: the number of this
    rank's share of the data, and how many shares there are; None: each rank has its own. nodes: of the
    ranks.
    """

    mesh: DeviceMesh
    share: tuple[int, int] | None
    nodes: tuple[int, ...]

    def ranks_of(self, name: str) -> tuple[int, ...]:
        """Return the ranks that this rank meets along a dimension of the mesh."""
        return tuple(dist.get_process_group_ranks(self.mesh.get_group(name)))

    def crosses_nodes(self, name: str) -> bool:
        """Return whether what this rank sends along a dimension of the mesh leaves its node."""
        return len({self.nodes[rank] for rank in self.ranks_of(name)}) > 1


def nodes_of_ranks() -> tuple[int, ...]:
    """Return the number of each rank's node. All ranks call it."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, int(os.environ.get("GROUP_RANK", "0")))
    return tuple(found)


def one_line(name: str, *, same_samples: bool) -> Layout:
    """All ranks in one dimension. same_samples: whether they all read the same samples."""
    size = dist.get_world_size()
    mesh = _mesh((size,), (name,))
    return Layout(mesh, (0, 1) if same_samples else None, nodes_of_ranks())


def grid(outer: str, inner: str, group_size: int | None, *, same_samples: bool) -> Layout:
    """Groups of ranks: `inner` within a group, `outer` between groups. Raises StrategyImpossible.

    group_size: ranks of a group; None: those of a node. same_samples: whether a group's ranks read the same.
    """
    nodes, size, rank = nodes_of_ranks(), dist.get_world_size(), dist.get_rank()
    each = _ranks_of_a_node(nodes) if group_size is None else group_size
    if size % each:
        raise StrategyImpossible(
            f"{size} ranks cannot be put into groups of {each}.",
            f"group_size is to divide the number of ranks: {_divisors(size)}.",
        )
    mesh = _mesh((size // each, each), (outer, inner))
    return Layout(mesh, (rank // each, size // each) if same_samples else None, nodes)


def share_random_state(group: Any) -> None:
    """Give all ranks of a group the random state of its first: they compute the same samples together."""
    states: list[Any] = [random_states()]
    first = dist.get_process_group_ranks(group)[0]
    dist.broadcast_object_list(states, src=first, group=group)
    if dist.get_rank() != first:
        set_random_states(states[0])


def _mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    device = place.torch_device().type
    # Ranks that share a GPU have Gloo, whose groups torch would otherwise give NCCL, which refuses them.
    shares = device == "cuda" and dist.get_backend() == "gloo"
    override: Any = dict.fromkeys(names, "gloo") if shares else None
    return init_device_mesh(device, shape, mesh_dim_names=names, backend_override=override)


def _ranks_of_a_node(nodes: Sequence[int]) -> int:
    counts = {nodes.count(node) for node in nodes}
    if len(counts) > 1:
        raise StrategyImpossible(
            f"The nodes have {', '.join(map(str, sorted(counts)))} ranks: groups would not be equal.",
            "Give group_size=, or the same number of ranks on each node.",
        )
    return counts.pop()


def _divisors(size: int) -> str:
    return ", ".join(str(number) for number in range(1, size + 1) if size % number == 0)
