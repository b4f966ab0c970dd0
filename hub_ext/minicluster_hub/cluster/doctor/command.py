"""The command doctor: gathers facts, examines them, and prints what it found."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from minicluster_hub.cluster.daemon import Daemon, own_container
from minicluster_hub.cluster.doctor import checks_links, checks_node, checks_swarm, gather, specs
from minicluster_hub.cluster.doctor.facts import ClusterFacts
from minicluster_hub.cluster.doctor.findings import Finding
from minicluster_hub.cluster.doctor.report import Door
from minicluster_hub.cluster.doctor.table import as_json, as_table
from minicluster_hub.cluster.plan import record as records
from minicluster_hub.cluster.plan.choices import TLS_NONE
from minicluster_hub.engines.swarm.docker import DockerError
from minicluster_hub.engines.swarm.names import CLUSTER


def doctor(daemon: Daemon, *, json: bool = False) -> int:
    """Print what is well and what is not; return 1 if anything failed."""
    facts = gather_all(daemon)
    findings = examine(facts)
    names = [node.name for node in facts.nodes]
    print(as_json(findings) if json else as_table(findings, names))  # noqa: T201
    return int(any(finding.level == "FAILED" for finding in findings))


def gather_all(daemon: Daemon) -> ClusterFacts:
    """Return all facts; the nodes are asked only where this is a manager of a working Swarm."""
    facts = gather.swarm_facts(daemon)
    if not facts.nodes:
        return facts
    record = records.load(daemon)
    image = (record.images.hub if record else "") or _own_image(daemon)
    if not image:
        return facts
    doors = _platform_doors(facts, record) if record else []
    networks = daemon.call("networks", names=[f"^{CLUSTER}$"])
    facts = gather.examine_nodes(daemon, facts, image, doors, overlay=bool(networks))
    if record is None:
        return facts
    size_bytes = _size(daemon, record.images.notebook)
    choices = record.choices
    return replace(
        facts,
        image_bytes=size_bytes,
        one_origin=not choices.domain,
        disk_reserve_bytes=choices.disk_reserve_bytes,
    )


def _platform_doors(facts: ClusterFacts, record: records.Record) -> list[Door]:
    homes = {record.manager_id}
    if record.choices.shared_data:
        homes = {where for service in facts.services if service.role == "proxy" for where in service.nodes}
    manager = next((node for node in facts.nodes if node.id in homes), None)
    if manager is None:
        return []
    roles = {service.role for service in facts.services}
    choices = record.choices
    return specs.platform_doors(manager, roles, choices.port, hub_tls=choices.tls != TLS_NONE)


def _own_image(daemon: Daemon) -> str:
    own = own_container(daemon)
    return str(own["Config"]["Image"]) if own else ""


def _size(daemon: Daemon, image: str) -> int:
    with suppress(DockerError):
        return int(daemon.call("inspect_image", image)["Size"]) if image else 0
    return 0


# All checks, in the order in which a person repairs a cluster. Pure.


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
