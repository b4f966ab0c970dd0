"""The command `doctor`: gathers facts, runs the checks, and prints the findings."""

from __future__ import annotations

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.doctor.checks import gpu_copies, interfaces, links, node, reach, swarm
from minicluster_hub.cluster.doctor.facts import ClusterFacts
from minicluster_hub.cluster.doctor.findings import Finding, as_json, as_table
from minicluster_hub.cluster.doctor.gather import gather

_CHECKS = (*swarm.CHECKS, *reach.CHECKS, *links.CHECKS, *interfaces.CHECKS, *node.CHECKS, *gpu_copies.CHECKS)
"""In the order in which a person repairs a cluster."""


def doctor(daemon: Daemon, *, json: bool = False) -> int:
    """Print the findings; return 1 if a check failed."""
    facts = gather(daemon)
    findings = examine(facts)
    names = [one.name for one in facts.nodes]
    print(as_json(findings) if json else as_table(findings, names))  # noqa: T201
    return int(any(finding.level == "FAILED" for finding in findings))


def examine(facts: ClusterFacts) -> list[Finding]:
    """Return all findings about a cluster. Pure."""
    return [finding for check in _CHECKS for finding in check(facts)]
