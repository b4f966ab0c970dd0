"""Collects the facts: what the manager says, and the reports of a probe on every node."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.doctor import specs
from minicluster_hub.cluster.doctor.checks_swarm import GETS_IMAGE
from minicluster_hub.cluster.doctor.facts import ClusterFacts, ServiceFacts, SwarmFacts
from minicluster_hub.cluster.doctor.report import REPORT_PREFIX, Door, OverlayReport, Report
from minicluster_hub.cluster.plan.plan import MANAGERS
from minicluster_hub.engines.swarm.docker import DockerConflict, DockerError, DockerMissing
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL, DATA_ROLE, NODE_LABEL, ROLE_LABEL
from minicluster_hub.engines.swarm.view import SwarmNode, nodes_of

_PLATFORM = (
    "proxy",
    "hub",
    "service",
    "docker-proxy",
    "policy",
    "registry",
    "cache",
    "relay",
    "firewall",
    "eviction",
    "keeper",
)
_LONGEST_S, _USUAL_S, _QUIET_S, _PAUSE_S = 16.0, 10.0, 3.0, 0.3
_OVER = ("rejected", "failed", "complete", "shutdown", "orphaned")


@dataclass
class Collected:
    """What has come back so far."""

    reports: dict[str, Report] = field(default_factory=dict)
    overlay: dict[str, OverlayReport] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    preparing: set[str] = field(default_factory=set)

    def silence(self, node_id: str) -> str:
        """Return why a node did not report, as far as Docker says."""
        return self.errors.get(node_id) or (GETS_IMAGE if node_id in self.preparing else "")


def swarm_facts(daemon: Daemon) -> ClusterFacts:
    """Return what the manager here knows without asking the nodes."""
    info = daemon.call("info")
    swarm = info.get("Swarm") or {}
    facts = SwarmFacts(
        state=str(swarm.get("LocalNodeState", "inactive")),
        manager=bool(swarm.get("ControlAvailable")),
        error=str(swarm.get("Error", "")),
        engine_version=str(info.get("ServerVersion", "")),
    )
    if facts.state != "active" or not facts.manager or facts.error:
        return ClusterFacts(facts)
    try:
        nodes = daemon.once("nodes")
        services = daemon.once("services", filters={"label": [f"{CLUSTER_LABEL}={CLUSTER}"]})
        tasks = daemon.once("tasks")
    except DockerError as error:
        return ClusterFacts(replace(facts, error=error.message))
    return ClusterFacts(
        _with_managers(facts, nodes), nodes_of(nodes), tuple(_services(services, tasks, nodes_of(nodes)))
    )


def examine_nodes(
    daemon: Daemon, facts: ClusterFacts, image: str, doors: Sequence[Door], *, overlay: bool
) -> ClusterFacts:
    """Run the probe on every node that takes work, and return the facts with the reports."""
    nodes = [node for node in facts.nodes if node.usable]
    task = specs.task_for(nodes, secrets.token_hex(16), [*specs.swarm_doors(nodes), *doors])
    services = [specs.host_service(task, image)]
    if overlay:
        services.append(specs.overlay_service(task, image))
    with _running(daemon, services) as ids:
        found = _collect(daemon, ids, nodes)
    return replace(
        facts,
        reports=found.reports,
        overlay=found.overlay,
        overlay_tried=len(services) > 1,
        silent={node.id: found.silence(node.id) for node in nodes if node.id not in found.reports},
        shm_bytes=specs.SHM_BYTES,
    )


@contextmanager
def _running(daemon: Daemon, services: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Have these services for a while, by their ids; those of an examination cut off are replaced."""
    try:
        for service in services:
            daemon.remove("remove_service", service["name"])
            _create(daemon, service)
        yield [str(daemon.call("inspect_service", service["name"])["ID"]) for service in services]
    finally:
        for service in services:
            with suppress(DockerError):
                daemon.remove("remove_service", service["name"])


def _create(daemon: Daemon, service: Mapping[str, Any]) -> None:
    # A repeated call that had worked before is a conflict too: it is there, and it is ours.
    with suppress(DockerConflict):
        daemon.call("create_service", **service)


def _collect(daemon: Daemon, services: Sequence[str], nodes: Sequence[SwarmNode]) -> Collected:
    """Read reports until all are there, or for a while no more have come."""
    found = Collected()
    wanted = {node.id for node in nodes}
    start = time.monotonic()
    deadline = start + _LONGEST_S
    while time.monotonic() < deadline:
        before = len(found.reports) + len(found.overlay)
        for service in services:
            _read_reports(_logs(daemon, service), found)
        _read_errors(daemon, services, found)
        if len(found.reports) + len(found.overlay) > before:
            deadline = max(start + _USUAL_S, time.monotonic() + _QUIET_S)
        if not _missing(found, wanted, overlay=len(services) > 1):
            break
        time.sleep(_PAUSE_S)
    return found


def _missing(found: Collected, wanted: set[str], *, overlay: bool) -> set[str]:
    pending = wanted - set(found.reports)
    if overlay:
        pending |= wanted - set(found.overlay)
    return pending - set(found.errors)


def _logs(daemon: Daemon, service: str) -> str:
    try:
        pieces = daemon.once("service_logs", service, stdout=True, stderr=False, is_tty=False)
        return b"".join(pieces).decode(errors="replace")
    except DockerMissing:
        return ""


def _read_reports(text: str, found: Collected) -> None:
    for line in text.splitlines():
        _, prefix, document = line.partition(REPORT_PREFIX)
        if not prefix:
            continue
        with suppress(ValidationError):
            if '"reached"' in document:
                report = OverlayReport.model_validate_json(document)
                found.overlay[report.node_id] = report
            else:
                node_report = Report.model_validate_json(document)
                found.reports[node_report.node_id] = node_report


def _read_errors(daemon: Daemon, services: Sequence[str], found: Collected) -> None:
    found.preparing = set()
    for task in daemon.once("tasks", filters={"service": list(services)}):
        status, node_id = task.get("Status") or {}, str(task.get("NodeID", ""))
        if status.get("State") in _OVER and node_id:
            found.errors[node_id] = str(status.get("Err") or status.get("Message") or "")
        elif status.get("State") == GETS_IMAGE:
            found.preparing.add(node_id)


def _with_managers(facts: SwarmFacts, raw: Iterable[Mapping[str, Any]]) -> SwarmFacts:
    managers = {node["ID"]: node["ManagerStatus"] for node in raw if node.get("ManagerStatus")}
    return replace(
        facts,
        leader_id=next((key for key, status in managers.items() if status.get("Leader")), ""),
        unreachable_managers=tuple(
            key for key, status in managers.items() if status.get("Reachability") != "reachable"
        ),
    )


def _services(
    services: Iterable[Mapping[str, Any]],
    tasks: Iterable[Mapping[str, Any]],
    nodes: Sequence[SwarmNode],
) -> Iterator[ServiceFacts]:
    """Count the running tasks of the platform's services; of a global one, each usable node has one.

    With shared data the job service is a global one of the managers.
    """
    by_id: dict[str, list[Mapping[str, Any]]] = {}
    for task in tasks:
        by_id.setdefault(task.get("ServiceID", ""), []).append(task)
    for service in services:
        spec = service["Spec"]
        role = (spec.get("Labels") or {}).get(ROLE_LABEL, "")
        if role not in _PLATFORM:
            continue
        own = by_id.get(service["ID"], [])
        replicated = (spec.get("Mode") or {}).get("Replicated")
        of_managers = MANAGERS in (spec["TaskTemplate"].get("Placement") or {}).get("Constraints", ())
        may = {node.id for node in nodes if node.usable and (node.manager or not of_managers)}
        if role == DATA_ROLE:  # one for each node, pinned to it
            may &= {str(spec["Labels"].get(NODE_LABEL))}
            if not may:
                continue
        wanted = 1 if replicated else len(may)
        runs_on = [str(task.get("NodeID")) for task in own if _runs(task) and task.get("NodeID") in may]
        newest_first = sorted(own, key=lambda task: str(task.get("CreatedAt", "")), reverse=True)
        errors = [str((task.get("Status") or {}).get("Err", "")) for task in newest_first]
        error = next(filter(None, errors), "")
        yield ServiceFacts(role, wanted, len(runs_on), error, frozenset(runs_on))


def _runs(task: Mapping[str, Any]) -> bool:
    return (task.get("Status") or {}).get("State") == "running" and task.get("DesiredState") == "running"
