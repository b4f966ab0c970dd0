"""The facts about a cluster at one moment: the input of the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minicluster_hub.cluster.doctor.messages import NodeReport, OverlayReport
from minicluster_hub.cluster.plan.record import ClusterRecord
from minicluster_hub.engines.swarm.view import SwarmNode

GETS_IMAGE = "preparing"
"""Docker's state of a task while its image is pulled."""


@dataclass(frozen=True)
class SwarmFacts:
    """The Swarm, as described by this machine's engine. state: active, inactive, locked, ...

    node_id: of this machine.
    """

    state: str
    manager: bool
    error: str = ""
    engine_version: str = ""
    node_id: str = ""
    leader_id: str = ""
    unreachable_managers: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether this machine is a manager of a working Swarm."""
        return self.state == "active" and self.manager and not self.error


@dataclass(frozen=True)
class ServiceFacts:
    """A service of the platform: the wanted and running tasks, their nodes, and the last error."""

    role: str
    wanted: int
    running: int
    error: str = ""
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ClusterFacts:
    """reports, overlay: of the probes, by node id. overlay_tried: whether probes ran on the overlay network.

    silent: nodes that are up but did not report, with Docker's reason if there is one.
    record: stored by `up`; None if there is no cluster. image_bytes: of the notebook image; 0: unknown.
    """

    swarm: SwarmFacts
    nodes: tuple[SwarmNode, ...] = ()
    services: tuple[ServiceFacts, ...] = ()
    reports: Mapping[str, NodeReport] = field(default_factory=dict)
    overlay: Mapping[str, OverlayReport] = field(default_factory=dict)
    overlay_tried: bool = False
    silent: Mapping[str, str] = field(default_factory=dict)
    record: ClusterRecord | None = None
    image_bytes: int = 0

    @property
    def reporting(self) -> list[tuple[SwarmNode, NodeReport]]:
        """The nodes that reported, with their reports."""
        return [(node, self.reports[node.id]) for node in self.nodes if node.id in self.reports]

    @property
    def leader(self) -> SwarmNode | None:
        """The manager whose clock is the reference."""
        return next((node for node in self.nodes if node.id == self.swarm.leader_id), None)

    def name(self, node_id: str) -> str:
        return next((node.name for node in self.nodes if node.id == node_id), node_id[:12])
