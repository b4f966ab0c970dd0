"""All that is known of a cluster at one moment: what the checks judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minicluster_hub.cluster.doctor.report import OverlayReport, Report
from minicluster_hub.engines.swarm.view import SwarmNode


@dataclass(frozen=True)
class SwarmFacts:
    """What the daemon here says of the Swarm. state: Docker's word (active, inactive, locked, ...)."""

    state: str
    manager: bool
    error: str = ""
    engine_version: str = ""
    leader_id: str = ""
    unreachable_managers: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServiceFacts:
    """A service of the platform: how many of its tasks should run, how many do and where, and why not."""

    role: str
    wanted: int
    running: int
    error: str = ""
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ClusterFacts:
    """silent: nodes that are up and did not report, with the reason in Docker's words where it has one.

    one_origin: all notebook servers share the hub's address. disk_reserve_bytes: what `up` was told, or 0.
    """

    swarm: SwarmFacts
    nodes: tuple[SwarmNode, ...] = ()
    services: tuple[ServiceFacts, ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    overlay: Mapping[str, OverlayReport] = field(default_factory=dict)
    overlay_tried: bool = False
    silent: Mapping[str, str] = field(default_factory=dict)
    one_origin: bool = False
    image_bytes: int = 0
    shm_bytes: int = 0
    disk_reserve_bytes: int = 0

    @property
    def reporting(self) -> list[tuple[SwarmNode, Report]]:
        """The nodes that reported, with what they said."""
        return [(node, self.reports[node.id]) for node in self.nodes if node.id in self.reports]

    @property
    def leader(self) -> SwarmNode | None:
        """The manager whose clock the others are held against."""
        return next((node for node in self.nodes if node.id == self.swarm.leader_id), None)

    def name(self, node_id: str) -> str:
        return next((node.name for node in self.nodes if node.id == node_id), node_id[:12])
