"""All checks, in the order in which a person repairs a cluster. Pure."""

from __future__ import annotations

from minicluster_hub.cluster.doctor import checks_links, checks_node, checks_swarm
from minicluster_hub.cluster.doctor.facts import ClusterFacts
from minicluster_hub.cluster.doctor.findings import Finding


def examine(facts: ClusterFacts) -> list[Finding]:
    """Return all findings about a cluster."""
    checks = (
        checks_swarm.check_swarm,
        checks_swarm.check_nodes,
        checks_swarm.check_engines,
        checks_swarm.check_services,
        checks_swarm.check_origins,
        checks_node.check_answers,
        checks_node.check_set_aside,
        checks_links.check_clocks,
        checks_links.check_ports,
        checks_links.check_links,
        checks_node.check_disk,
        checks_node.check_shm,
        checks_node.check_gpus,
    )
    return [finding for check in checks for finding in check(facts)]
