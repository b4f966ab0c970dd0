"""Collects the facts: the manager's answers, and the reports of a probe on every node."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from minicluster_hub.cluster.containers import own_image
from minicluster_hub.cluster.daemon import Daemon, own_container
from minicluster_hub.cluster.doctor import specs
from minicluster_hub.cluster.doctor.facts import GETS_IMAGE, ClusterFacts, ServiceFacts, SwarmFacts
from minicluster_hub.cluster.doctor.messages import REPORT_PREFIX, NodeReport, OverlayReport
from minicluster_hub.cluster.plan import record as records
from minicluster_hub.cluster.plan.plan import MANAGERS, PLATFORM
from minicluster_hub.engines.swarm.docker import DockerConflict, DockerError, DockerMissing
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL, DATA_ROLE, NODE_LABEL, ROLE_LABEL
from minicluster_hub.engines.swarm.view import SwarmNode, nodes_of

_ROLES = {*PLATFORM, DATA_ROLE} - {"images"}
"""Services that run all the time."""
_LIMIT_S, _USUAL_S, _QUIET_S, _POLL_S = 16.0, 12.0, 3.0, 0.3
_ENDED = ("rejected", "failed", "complete", "shutdown", "orphaned")


def gather(daemon: Daemon) -> ClusterFacts:
    """Return all facts. Probes run only if this is a manager of a working Swarm."""
    facts = _swarm_facts(daemon)
    if not facts.nodes:
        return facts
    record = records.load(daemon)
    facts = replace(facts, record=record, image_bytes=_notebook_bytes(daemon, record))
    image = (record.images.hub if record else "") or own_image(own_container(daemon))
    return _examine_nodes(daemon, facts, image) if image else facts


def _notebook_bytes(daemon: Daemon, record: records.ClusterRecord | None) -> int:
    if record is None or not record.images.notebook:
        return 0
    with suppress(DockerError):
        return int(daemon.call("inspect_image", record.images.notebook)["Size"])
    return 0


# --- the manager's answers ------------------------------------------------------------------------


def _swarm_facts(daemon: Daemon) -> ClusterFacts:
    """Return the facts that this manager knows without probes."""
    info = daemon.call("info")
    swarm = info.get("Swarm") or {}
    facts = SwarmFacts(
        state=str(swarm.get("LocalNodeState", "inactive")),
        manager=bool(swarm.get("ControlAvailable")),
        error=str(swarm.get("Error", "")),
        engine_version=str(info.get("ServerVersion", "")),
        node_id=str(swarm.get("NodeID", "")),
    )
    if not facts.usable:
        return ClusterFacts(facts)
    try:
        raw_nodes = daemon.once("nodes")
        services = daemon.once("services", filters={"label": [f"{CLUSTER_LABEL}={CLUSTER}"]})
        tasks = daemon.once("tasks")
    except DockerError as error:
        return ClusterFacts(replace(facts, error=error.message))
    managers = {node["ID"]: node["ManagerStatus"] for node in raw_nodes if node.get("ManagerStatus")}
    facts = replace(
        facts,
        leader_id=next((key for key, status in managers.items() if status.get("Leader")), ""),
        unreachable_managers=tuple(
            key for key, status in managers.items() if status.get("Reachability") != "reachable"
        ),
    )
    nodes = nodes_of(raw_nodes)
    return ClusterFacts(facts, nodes, tuple(_services(services, tasks, nodes)))


def _services(
    services: Iterable[Mapping[str, Any]],
    tasks: Iterable[Mapping[str, Any]],
    nodes: Sequence[SwarmNode],
) -> Iterator[ServiceFacts]:
    """Count the running tasks of the platform's services. A global service has one on each usable node.

    With shared data the job service is global on the managers.
    """
    by_service: dict[str, list[Mapping[str, Any]]] = {}
    for task in tasks:
        by_service.setdefault(task.get("ServiceID", ""), []).append(task)
    for service in services:
        spec, own = service["Spec"], by_service.get(service["ID"], [])
        role = (spec.get("Labels") or {}).get(ROLE_LABEL, "")
        if role not in _ROLES:
            continue
        of_managers = MANAGERS in (spec["TaskTemplate"].get("Placement") or {}).get("Constraints", ())
        allowed = {node.id for node in nodes if node.usable and (node.manager or not of_managers)}
        if role == DATA_ROLE:  # one for each node, pinned to it
            allowed &= {str(spec["Labels"].get(NODE_LABEL))}
            if not allowed:
                continue
        wanted = 1 if (spec.get("Mode") or {}).get("Replicated") else len(allowed)
        runs_on = [str(task.get("NodeID")) for task in own if _runs(task) and task.get("NodeID") in allowed]
        newest_first = sorted(own, key=lambda task: str(task.get("CreatedAt", "")), reverse=True)
        errors = (str((task.get("Status") or {}).get("Err", "")) for task in newest_first)
        yield ServiceFacts(role, wanted, len(runs_on), next(filter(None, errors), ""), frozenset(runs_on))


def _runs(task: Mapping[str, Any]) -> bool:
    return (task.get("Status") or {}).get("State") == "running" and task.get("DesiredState") == "running"


# --- what the probes report -----------------------------------------------------------------------


@dataclass
class Collected:
    """The reports so far, by node id. errors, preparing: Docker's messages about tasks."""

    reports: dict[str, NodeReport] = field(default_factory=dict)
    overlay: dict[str, OverlayReport] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    preparing: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        return len(self.reports) + len(self.overlay)

    def why_silent(self, node_id: str) -> str:
        """Return Docker's reason why a node did not report; "" if it has none."""
        return self.errors.get(node_id) or (GETS_IMAGE if node_id in self.preparing else "")

    def lacks_any(self, wanted: set[str], *, overlay: bool) -> bool:
        pending = wanted - set(self.reports)
        if overlay:
            pending |= wanted - set(self.overlay)
        return bool(pending - set(self.errors))


def _examine_nodes(daemon: Daemon, facts: ClusterFacts, image: str) -> ClusterFacts:
    """Run the probe on every node that accepts work, and return the facts with the reports."""
    nodes = [node for node in facts.nodes if node.usable]
    task = specs.task_for(facts, nodes, secrets.token_hex(16))
    services = [specs.host_service(task, image)]
    if daemon.call("networks", names=[f"^{CLUSTER}$"]):
        services.append(specs.overlay_service(task, image))
    with _running(daemon, services) as ids:
        found = _collect(daemon, ids, nodes)
    return replace(
        facts,
        reports=found.reports,
        overlay=found.overlay,
        overlay_tried=len(services) > 1,
        silent={node.id: found.why_silent(node.id) for node in nodes if node.id not in found.reports},
    )


@contextmanager
def _running(daemon: Daemon, services: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Run these services during the block; yield their ids. Replace those of an interrupted run."""
    try:
        for service in services:
            daemon.remove("remove_service", service["name"])
            with suppress(DockerConflict):  # The first try of a repeated call created it.
                daemon.call("create_service", **service)
        yield [str(daemon.call("inspect_service", service["name"])["ID"]) for service in services]
    finally:
        for service in services:
            with suppress(DockerError):
                daemon.remove("remove_service", service["name"])


def _collect(daemon: Daemon, services: Sequence[str], nodes: Sequence[SwarmNode]) -> Collected:
    """Read reports until all have come, or until none has come for a while."""
    found = Collected()
    wanted = {node.id for node in nodes}
    start = time.monotonic()
    deadline = start + _LIMIT_S
    while time.monotonic() < deadline:
        before = found.count
        for service in services:
            _read_reports(_logs(daemon, service), found)
        _read_errors(daemon, services, found)
        if found.count > before:
            deadline = max(start + _USUAL_S, time.monotonic() + _QUIET_S)
        if not found.lacks_any(wanted, overlay=len(services) > 1):
            break
        time.sleep(_POLL_S)
    return found


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
                overlay_report = OverlayReport.model_validate_json(document)
                found.overlay[overlay_report.node_id] = overlay_report
            else:
                report = NodeReport.model_validate_json(document)
                found.reports[report.node_id] = report


def _read_errors(daemon: Daemon, services: Sequence[str], found: Collected) -> None:
    found.preparing = set()
    for task in daemon.once("tasks", filters={"service": list(services)}):
        status, node_id = task.get("Status") or {}, str(task.get("NodeID", ""))
        if status.get("State") in _ENDED and node_id:
            found.errors[node_id] = str(status.get("Err") or status.get("Message") or "")
        elif status.get("State") == GETS_IMAGE:
            found.preparing.add(node_id)
