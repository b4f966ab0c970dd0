"""What jobs leave on the nodes, by the kernels' and the engines' own tables, not by our records.

A `Census` is taken before a job and again after it: the difference is what the job left. What it holds
in its containers' own namespaces (shared memory, sockets, temporary files) goes with their last process.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from minicluster_hub.engines.swarm.names import CLUSTER_LABEL, ROLE_LABEL

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
        """Look at the Swarm and at all nodes but one that does not answer."""
        nodes = [node for node in cluster.lab.nodes if node is not without]
        found = {f"{kind} {name}" for kind, names in cluster.remains().items() for name in names}
        for node in nodes:
            found |= {f"{node.name}: {thing}" for thing in _on(cluster, node)}
        return cls(frozenset(found))

    def left_since(self, before: Census) -> list[str]:
        return sorted(self.things - before.things)


def wait_clean(
    cluster: LabCluster, before: Census, since: float, within_s: float, without: Node | None = None
) -> float:
    """Wait until all is as before; return how long after `since` (monotonic) it was."""
    while left := Census.of(cluster, without=without).left_since(before):
        assert time.monotonic() < since + within_s, f"left {within_s:g} s later: {left}"
        time.sleep(0.1)
    return time.monotonic() - since


def processes_of(cluster: LabCluster, node: Node, text: str) -> list[int]:
    """Return the processes on a node, containers' ones included, whose command line holds a text."""
    return [pid for pid, _, _, command in _processes(node.machine.first()) if text in command]


def _on(cluster: LabCluster, node: Node) -> set[str]:
    platform = _platform(cluster, node)
    first = node.machine.first()
    found = {f"container {one}" for one in _listed(cluster, node, "ps", "--all") - platform}
    found |= {f"network {one}" for one in _listed(cluster, node, "network", "ls")}
    found |= {f"group {one}" for one in node.machine.group.below()}
    found |= {f"mount {line.split()[1]}" for line in _lines(f"/proc/{first}/mounts")}
    found |= {f"link {line.split(':')[0].strip()}" for line in _lines(f"/proc/{first}/net/dev")[2:]}
    found |= {
        f"process {pid} started at {start}: {command}"
        for pid, start, container, command in _processes(first)
        if container not in platform and not any(one in command for one in platform)
    }
    return {one for one in found if _STAYS not in one and not platform & set(_ID.findall(one))}


def _platform(cluster: LabCluster, node: Node) -> set[str]:
    """Return the ids of the containers that are not tasks of jobs."""
    marks = ["--filter", f"label={CLUSTER_LABEL}", "--format", f'{{{{.ID}}}} {{{{.Label "{ROLE_LABEL}"}}}}']
    lines = cluster.docker("ps", "--all", "--no-trunc", *marks, node=node)
    return {line.split()[0] for line in lines if line.split()[1:] not in (["task"], ["lighthouse"])}


def _listed(cluster: LabCluster, node: Node, *words: str) -> set[str]:
    return set(cluster.docker(*words, "--no-trunc", "--quiet", node=node))


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
