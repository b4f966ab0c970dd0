"""What jobs leave on the nodes, by the kernels' and the engines' own tables, not by our records.

A `Census` is taken before a job and again after it: the difference is what the job left. What it holds
in its containers' own namespaces (shared memory, sockets, temporary files) goes with their last process.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from minicluster_hub.engines.swarm.names import CLUSTER_LABEL, ROLE_LABEL, label_filter

from .cluster import LabCluster
from .machines import Node

_ID = re.compile(r"[0-9a-f]{64}")
_STAYS = "docker_gwbridge"
"""Docker makes it with the first overlay network of a node, and keeps it."""


@dataclass(frozen=True)
class Census:
    """All that is there now, but what belongs to the platform's own containers."""

    things: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, cluster: LabCluster, *, without: Node | None = None) -> Census:
        """Look at the Swarm and at all nodes but one that does not answer.

        The Swarm keeps the networks of such a node's tasks until it takes the node for down.
        """
        nodes = [node for node in cluster.lab.nodes if node is not without]
        with ThreadPoolExecutor(len(nodes) + 1) as pool:
            of_swarm = pool.submit(_of_swarm, cluster.first)
            on_nodes = list(pool.map(_on, nodes))
        found = {
            f"{node.name}: {one}" for node, things in zip(nodes, on_nodes, strict=True) for one in things
        }
        kept = {one for one in of_swarm.result() if without is not None and one.startswith("network ")}
        listed = {f"{cluster.first.name}: {one}" for one in kept}
        return cls(frozenset((found | of_swarm.result()) - kept - listed))

    def left_since(self, before: Census) -> list[str]:
        return sorted(self.things - before.things)


def wait_rid_of_jobs(cluster: LabCluster, before: Census, within_s: float) -> float:
    """The same where the platform's containers may have started again: with other mounts and links."""
    since = time.monotonic()

    def left() -> list[str]:
        now = Census.of(cluster).left_since(before)
        return [one for one in now if not re.match(r"\S+: (mount|link) ", one)]

    while found := left():
        assert time.monotonic() < since + within_s, f"left {within_s:g} s later: {found}"
        time.sleep(0.1)
    return time.monotonic() - since


def wait_clean(
    cluster: LabCluster, before: Census, since: float, within_s: float, without: Node | None = None
) -> float:
    """Wait until all is as before; return how long after `since` (monotonic) it was."""
    while left := Census.of(cluster, without=without).left_since(before):
        assert time.monotonic() < since + within_s, f"left {within_s:g} s later: {left}"
        time.sleep(0.1)
    clean_s = time.monotonic() - since
    assert clean_s < within_s, f"clean after {clean_s:.1f} s only"
    return clean_s


def processes_of(cluster: LabCluster, node: Node, text: str) -> list[int]:
    """Return the processes on a node, containers' ones included, whose command line holds a text."""
    return [pid for pid, _, _, command in _processes(node.machine.first()) if text in command]


def _of_swarm(manager: Node) -> set[str]:
    with manager.docker() as client:
        found = {f"service {one['ID']}" for one in client.services(filters=label_filter("task"))}
        found |= {f"secret {one['ID']}" for one in client.secrets(filters=label_filter("task"))}
        return found | {f"network {one['Id']}" for one in client.networks(filters=label_filter("gang"))}


def _on(node: Node) -> set[str]:
    with node.docker() as client:
        containers, networks = client.containers(all=True), client.networks()
    platform = {one["Id"] for one in containers if _is_platform(one["Labels"])}
    first = node.machine.first()
    found = {f"container {one['Id']}" for one in containers} | {f"network {one['Id']}" for one in networks}
    found |= {f"group {one}" for one in node.machine.group.below()}
    found |= {f"mount {line.split()[1]}" for line in _lines(f"/proc/{first}/mounts")}
    found |= {f"link {line.split(':')[0].strip()}" for line in _lines(f"/proc/{first}/net/dev")[2:]}
    found |= {
        f"process {pid} started at {start}: {command}"
        for pid, start, container, command in _processes(first)
        if container not in platform and not any(one in command for one in platform)
    }
    return {one for one in found if _STAYS not in one and not platform & set(_ID.findall(one))}


def _is_platform(labels: Mapping[str, str]) -> bool:
    return CLUSTER_LABEL in labels and labels.get(ROLE_LABEL) not in (None, "task", "lighthouse")


def _processes(first: int) -> list[tuple[int, str, str, str]]:
    """Return id, start, container's id and command line of all below a machine's first process."""
    stats = {pid: stat for pid in _all() if (stat := _stat(pid)) and stat[0] not in "ZX"}
    found: list[tuple[int, str, str, str]] = []
    for pid, stat in stats.items():
        if _is_below(pid, first, stats):
            group = _ID.search("".join(_lines(f"/proc/{pid}/cgroup")))
            command = " ".join(_lines(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()
            found.append((pid, stat[19], group[0] if group else "", command))
    return found


def _is_below(pid: int, first: int, stats: dict[int, list[str]]) -> bool:
    while pid in stats:
        pid = int(stats[pid][1])
        if pid == first:
            return True
    return False


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _stat(pid: int) -> list[str]:
    """Return a process's line from its state on; nothing when it is gone."""
    line = "".join(_lines(f"/proc/{pid}/stat"))
    return line.rpartition(")")[2].split()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []
