"""What the cluster says of a job that is not submitted: the nodes it would have, and when it would start."""

from __future__ import annotations

from dataclasses import dataclass

from minicluster.client.client import JobServiceClient
from minicluster.errors import MiniclusterError
from minicluster.options import CellOptions
from minicluster.wire import JobSpec, Node
from minicluster.wire.starts import StartForecast

_NODES_UNKNOWN = 3
"""How many nodes are taken if neither the line nor the cluster says how many."""


@dataclass(frozen=True)
class ClusterView:
    """The nodes that may take jobs, and the forecast. trouble: why nothing is known; "" otherwise."""

    nodes: tuple[Node, ...] = ()
    start: StartForecast | None = None
    now: float = 0.0
    trouble: str = ""

    @classmethod
    def ask(cls, service: JobServiceClient, spec: JobSpec) -> ClusterView:
        """Ask in one request. A service that does not answer, or is too old, is no error."""
        try:
            answer = service.starts((spec,))
        except MiniclusterError as error:
            return cls(trouble=error.message)
        return cls(answer.nodes, answer.starts[0], answer.now)

    def shape(self, options: CellOptions) -> tuple[int, int]:
        """Return the most nodes, and the ranks on each, that a job of these options would have."""
        if options.slots is not None:
            # On any nodes: at worst one rank on each.
            return options.slots.max, 1
        ranks = options.ranks_per_node or options.slots_per_node
        if options.nodes is not None:
            return options.nodes.max, ranks
        fitting = sum(len(node.slots) >= options.slots_per_node for node in self.open_nodes)
        return (self.start.nodes if self.start and self.start.nodes else fitting) or _NODES_UNKNOWN, ranks

    @property
    def open_nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.up and not node.closed)

    @property
    def slots_per_node(self) -> int:
        return max((len(node.slots) for node in self.open_nodes), default=1)

    @property
    def has_gpus(self) -> bool | None:
        """Whether ranks get GPUs; None: not known."""
        kinds = {slot.kind for node in self.open_nodes for slot in node.slots}
        return "gpu" in kinds if kinds else None
