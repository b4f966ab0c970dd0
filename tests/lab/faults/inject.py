"""The faults that the lab's tests inject, by name.

Most of them are context managers: they inject the fault at the start of the block and undo it at the end. The
Swarm replaces killed containers by itself.

| fault | what it is |
| --- | --- |
| `power_lost`, `cable_out`, `frozen` | a node is lost without notice (`SUDDEN_LOSSES`) |
| `drained`, `out_of_the_swarm` | a node that an administrator takes out |
| `off_the_jobs_network` | a node that ranks on other nodes cannot reach |
| `kill`, `killed` | a platform service is killed: hub, proxy, job service, registry, ... |
| `kill_managers_engine` | the Docker Engine that runs the platform's services is killed |
| `restart_engine` | a node's Docker Engine is restarted, as an update does |
| `kill_agent` | a task's agent is killed |
| `without_registries`, `hanging_registries` | images cannot be pulled, or a pull takes forever |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from minicluster_hub.engines.swarm.names import ROLE_LABEL

from ..cluster import LabCluster
from ..machines import Node
from ..machines.processes import wait_for

BACK_WITHIN_S = 240
_REGISTRIES = ("registry", "cache")
NodeFault = Callable[[LabCluster, Node], AbstractContextManager[None]]


@contextmanager
def power_lost(cluster: LabCluster, node: Node) -> Iterator[None]:
    """All processes of the node die, and no connection is closed."""
    node.kill()
    try:
        yield
    finally:
        node.power_on()


@contextmanager
def cable_out(cluster: LabCluster, node: Node) -> Iterator[None]:
    """The node keeps running, but other machines get no packets from it."""
    node.cut()
    try:
        yield
    finally:
        node.plug()


@contextmanager
def frozen(cluster: LabCluster, node: Node) -> Iterator[None]:
    """All processes of the node are frozen, and continue later."""
    node.freeze()
    try:
        yield
    finally:
        node.thaw()


SUDDEN_LOSSES: dict[str, NodeFault] = {"power": power_lost, "cable": cable_out, "frozen": frozen}


@contextmanager
def drained(cluster: LabCluster, node: Node) -> Iterator[None]:
    """An administrator drains the node for a while."""
    cluster.docker("node", "update", "--availability", "drain", node.name)
    try:
        yield
    finally:
        cluster.docker("node", "update", "--availability", "active", node.name)


@contextmanager
def out_of_the_swarm(cluster: LabCluster, node: Node) -> Iterator[None]:
    """The node leaves the Swarm, and joins it again by the command that `up` printed."""
    cluster.docker("swarm", "leave", node=node)
    try:
        yield
    finally:
        cluster.lab.join(node, cluster.join_command)


@contextmanager
def off_the_jobs_network(cluster: LabCluster, node: Node) -> Iterator[None]:
    """Packets of the jobs' networks do not reach the node; all other traffic does."""
    rule = ["INPUT", "-p", "udp", "--dport", "4789", "-j", "DROP"]
    node.run(["iptables", "--insert", *rule])
    try:
        yield
    finally:
        node.run(["iptables", "--delete", *rule])


def kill(cluster: LabCluster, role: str) -> str:
    """Kill a platform service's container, as the kernel does if memory is short; return its id."""
    found = container_of(cluster, role)
    cluster.docker("kill", found)
    return found


def wait_replaced(cluster: LabCluster, role: str, killed: str, within_s: float = BACK_WITHIN_S) -> None:
    """Wait until another container has replaced the killed one."""

    def is_replaced() -> bool:
        found = cluster.docker("ps", "--quiet", "--no-trunc", "--filter", f"label={ROLE_LABEL}={role}")
        return bool(found) and killed not in found

    wait_for(is_replaced, f"the {role} to be back", within_s, 0.2)


@contextmanager
def killed(cluster: LabCluster, role: str) -> Iterator[None]:
    """Kill a platform service; at the end of the block, wait until another container has replaced it."""
    gone = kill(cluster, role)
    try:
        yield
    finally:
        wait_replaced(cluster, role, gone)


def kill_and_wait(cluster: LabCluster, role: str) -> None:
    with killed(cluster, role):
        pass


def kill_managers_engine(cluster: LabCluster) -> None:
    """Kill and start the first machine's engine: all of the platform's services restart."""
    cluster.first.kill_daemon()


def restart_engine(cluster: LabCluster, node: Node) -> None:
    """Stop a node's engine with all its containers, and start it again."""
    node.restart_daemon()


def kill_agent(cluster: LabCluster, node: Node) -> None:
    """Kill the only agent on a node; wait first for a short job's warm gang to end there."""
    found: list[str] = []

    def is_alone() -> bool:
        found[:] = task_containers(cluster, node)
        return len(found) == 1

    wait_for(is_alone, f"the only agent on {node.name}", BACK_WITHIN_S, 0.2)
    cluster.docker("kill", *found, node=node)


@contextmanager
def without_registries(cluster: LabCluster) -> Iterator[None]:
    """The cluster's registry, its cache, and the outside registry behind the cache are away."""
    names = [f"minicluster_{role}" for role in _REGISTRIES]
    for name in names:
        cluster.docker("service", "scale", "--detach", f"{name}=0")
    cluster.lab.registry.stop()
    try:
        wait_for(lambda: not _registries(cluster), "registry and cache to end", 60, 0.5)
        yield
    finally:
        cluster.lab.registry.start()
        for name in names:
            cluster.docker("service", "scale", "--detach", f"{name}=1")
        wait_for(lambda: len(_registries(cluster)) == len(names), "registry and cache to be back", 60, 0.5)


@contextmanager
def hanging_registries(cluster: LabCluster, image: str) -> Iterator[None]:
    """No node has the image, and requests for it get no answer."""
    for node in cluster.lab.nodes:
        node.run(["docker", "rmi", "--force", image], check=False)
    paused = _registries(cluster)
    cluster.docker("pause", *paused)
    try:
        yield
    finally:
        cluster.docker("unpause", *paused)


def _registries(cluster: LabCluster) -> list[str]:
    filters = [f"label={ROLE_LABEL}={role}" for role in _REGISTRIES]
    return [line for one in filters for line in cluster.docker("ps", "--quiet", "--filter", one)]


def container_of(cluster: LabCluster, role: str) -> str:
    """Return the id of a platform service's container on the first node."""
    (found,) = cluster.docker("ps", "--quiet", "--no-trunc", "--filter", f"label={ROLE_LABEL}={role}")
    return found


def task_containers(cluster: LabCluster, node: Node) -> list[str]:
    """Return the ids of the tasks' running containers on a node."""
    return cluster.docker("ps", "--quiet", "--filter", f"label={ROLE_LABEL}=task", node=node)
