"""The Swarm itself: its state, managers, nodes, engines and the platform's services. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from minicluster_hub.cluster.daemon import is_too_old
from minicluster_hub.cluster.doctor.facts import GETS_IMAGE, ClusterFacts, ServiceFacts
from minicluster_hub.cluster.doctor.findings import EVERYWHERE, Finding, failed, ok, warning
from minicluster_hub.engines.swarm.names import DATA_ROLE
from minicluster_hub.engines.swarm.view import SwarmNode

_PORTS = "2377/tcp, 7946/tcp, 7946/udp and 4789/udp"


def check_swarm(facts: ClusterFacts) -> Iterator[Finding]:
    """Check that this machine is a manager of a working Swarm."""
    swarm = facts.swarm
    if swarm.state == "locked":
        words, remedy = "the Swarm is locked", "Run `docker swarm unlock` with its key here."
    elif swarm.state != "active":
        words = f"this machine is in no Swarm (state {swarm.state or 'unknown'})"
        remedy = "Run the command `up` here, or doctor on the first machine."
    elif swarm.error:
        words = f"the Swarm's managers have no quorum: {swarm.error}"
        remedy = "Start the other managers; if they are gone for good: docker swarm init --force-new-cluster."
    elif not swarm.manager:
        words = "this machine is no manager of its Swarm"
        remedy = "Run doctor on a manager (docker node ls works there)."
    else:
        yield ok("swarm", EVERYWHERE, f"Swarm is active, {len(facts.nodes)} nodes")
        yield from _check_managers(facts)
        return
    yield failed("swarm", EVERYWHERE, words, remedy)


def _check_managers(facts: ClusterFacts) -> Iterator[Finding]:
    managers = [node for node in facts.nodes if node.manager]
    for node_id in facts.swarm.unreachable_managers:
        name = facts.name(node_id)
        remedy = f"Start {name}, and see that port 2377/tcp is open to it."
        yield failed("managers", name, "this manager is not reachable", remedy)
    if len(managers) % 2 == 0:
        words = f"{len(managers)} managers: one lost manager stops the Swarm as it would with fewer"
        remedy = f"Make it an odd number: docker node demote {managers[-1].name}." if managers else ""
        yield warning("managers", EVERYWHERE, words, remedy)


def check_nodes(facts: ClusterFacts) -> Iterator[Finding]:
    """Check that nodes are up, accept work, and answered the probe."""
    for node in facts.nodes:
        short_id = node.id[:12]
        if not node.up:
            remedy = (
                f"Start it and its Docker, and see that {_PORTS} are open to it; if it is gone for good:"
                f" docker node rm --force {short_id}."
            )
            yield failed("node", node.name, f"down ({node.address or 'no address'})", remedy)
        elif node.availability != "active":
            words = f"takes no work: its availability is {node.availability}"
            yield warning("node", node.name, words, f"docker node update --availability active {short_id}")
        if node.up and node.id in facts.silent:
            yield _silence(node, facts.silent[node.id])


def _silence(node: SwarmNode, reason: str) -> Finding:
    if reason == GETS_IMAGE:
        remedy = "Run doctor again in a minute."
        return warning("probe", node.name, "not examined: it is still getting the hub image", remedy)
    if "image" in reason.lower() or "manifest" in reason.lower():
        remedy = "See what is said of the registry and its relay, then run doctor again."
        return failed("probe", node.name, f"cannot get the hub image: {reason}", remedy)
    if reason:
        remedy = "See that node's Docker log: journalctl -u docker."
        return failed("probe", node.name, f"cannot start a container: {reason}", remedy)
    words = "did not answer: the Swarm says it is up, and no report came from it"
    remedy = "Run doctor again in half a minute; if it stays so, look at that machine and its network cable."
    return failed("probe", node.name, words, remedy)


def check_engines(facts: ClusterFacts) -> Iterator[Finding]:
    """Check engines: before 23.0.2 they reject a service that has both a GPU and a network."""
    for node in facts.nodes:
        version = node.engine_version or "(unknown)"
        if is_too_old(node.engine_version):
            words = f"Docker Engine {version} is too old: jobs with a GPU never start"
            yield failed("engine", node.name, words, "Install Docker Engine 23.0.2 or newer on it.")
        else:
            yield ok("engine", node.name, "Docker Engine is new enough")


def check_services(facts: ClusterFacts) -> Iterator[Finding]:
    """Check that all services of the platform run."""
    if not facts.services and facts.swarm.usable:
        words = "none of the cluster's services is there"
        yield failed("services", EVERYWHERE, words, "Run the command `up` on this machine.")
    for service in facts.services:
        if service.running >= service.wanted:
            yield ok("services", EVERYWHERE, f"{service.role} runs")
        else:
            yield _not_running(service)


def _not_running(service: ServiceFacts) -> Finding:
    where = f"runs on {service.running} of {service.wanted} nodes" if service.wanted > 1 else "does not run"
    reason = f": {service.error}" if service.error else ""
    name = "minicluster-keeper-NODE-ID" if service.role == DATA_ROLE else f"minicluster_{service.role}"
    remedy = f"See docker service logs {name}; then run the command `up` again."
    return failed("services", EVERYWHERE, f"{service.role} {where}{reason}", remedy)


def check_origins(facts: ClusterFacts) -> Iterator[Finding]:
    """Check for a domain: without one, users' pages have the hub's origin in browsers."""
    if facts.record is not None and not facts.record.choices.domain:
        words = "all notebook servers share the hub's address: a page in one can act as any user who opens it"
        remedy = "Give users names of their own by `up --domain HOST`; until then open no other user's pages."
        yield warning("domain", EVERYWHERE, words, remedy)


CHECKS = (check_swarm, check_nodes, check_engines, check_services, check_origins)
