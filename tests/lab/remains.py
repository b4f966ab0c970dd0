"""Checks for remains of jobs and servers, from the quickest to the most thorough.

`check_nothing_of_jobs_left`: tasks on the engines. `check_nothing_left`: tasks and servers, compared with the
job service's database. `Census`: everything that the kernel and the engines list, before and after a job; the
difference is what the job left. Objects in the namespaces of a job's containers (shared memory, sockets,
temporary files) go with the last process and are not listed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from minicluster_hub.engines.swarm.names import (
    CLUSTER_LABEL,
    ROLE_LABEL,
    gang_network,
    label_filter,
    server_name,
    task_name,
)

from .behind import query
from .cluster import LabCluster
from .machines import Node

_ID = re.compile(r"[0-9a-f]{64}")
_STAYS = "docker_gwbridge"
"""Docker creates this network with a node's first overlay network, and never removes it."""
_OPEN_JOBS = "SELECT id, owner, state FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'stopped')"
_TASKS = "SELECT id, gang_id FROM tasks WHERE state != 'ended'"
_SERVERS = "SELECT owner, name FROM servers"
_SETTLED_S = 60.0
_GONE_WITHIN_S = 240.0


def wait_none(left: Callable[[], Sequence[object]], what: str, within_s: float = _SETTLED_S) -> None:
    """Wait until `left` returns nothing."""
    until = time.monotonic() + within_s
    while found := left():
        assert time.monotonic() < until, f"{what}, after {within_s:g} s: {found}"
        time.sleep(0.3)


def check_nothing_of_jobs_left(cluster: LabCluster) -> None:
    """Wait until no engine has anything of any job."""
    wait_none(lambda: left_of_jobs(cluster), "the Swarm and its nodes have something left", _GONE_WITHIN_S)


def left_of_jobs(cluster: LabCluster) -> list[str]:
    """Return the services and secrets of jobs, and on each node their containers and networks."""
    with ThreadPoolExecutor(len(cluster.lab.nodes)) as pool:
        on_nodes = list(pool.map(on_node, cluster.lab.nodes))
    return [*cluster.remains(), *(one for found in on_nodes for one in found)]


def on_node(node: Node) -> list[str]:
    """Return the tasks' containers, including stopped ones, and the gangs' networks on a node."""
    with node.docker() as client:
        containers = client.containers(all=True, filters=label_filter("task"))
        networks = client.networks(filters={"name": "minicluster-gang"})
    found = [f"container {one['Names'][0]} ({one['Status']})" for one in containers]
    return [f"{one} on {node.name}" for one in [*found, *(f"network {one['Name']}" for one in networks)]]


def check_nothing_left(cluster: LabCluster) -> None:
    """Wait until all jobs have ended, and the Swarm matches the job service's database."""
    wait_none(lambda: query(cluster, _OPEN_JOBS)[0], "jobs are not over")
    wait_none(lambda: unmatched(cluster), "what is there and the rows differ")


def unmatched(cluster: LabCluster) -> list[str]:
    """Return objects of the Swarm without a row, and rows without an object."""
    tasks, servers = query(cluster, _TASKS, _SERVERS)
    names = {task_name(task) for task, _ in tasks}
    pairs = {
        "task services": (set(cluster.services("task")), names),
        "task secrets": (_named(cluster, "secret", "task"), names),
        "gang networks": (_named(cluster, "network", "gang"), {gang_network(gang) for _, gang in tasks}),
        "servers": (set(cluster.services("server")), {server_name(*server) for server in servers}),
    }
    return [
        f"{what}: {sorted(there)} are there, rows: {sorted(rows)}"
        for what, (there, rows) in pairs.items()
        if there != rows
    ]


def _named(cluster: LabCluster, kind: str, role: str) -> set[str]:
    return set(cluster.docker(kind, "ls", "--filter", f"label={ROLE_LABEL}={role}", "--format", "{{.Name}}"))


@dataclass(frozen=True)
class Census:
    """All objects that exist now, except those of the platform's own containers."""

    things: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, cluster: LabCluster, *, without: Node | None = None) -> Census:
        """List the objects of the Swarm and of all nodes except `without`, which does not answer.

        The Swarm keeps the networks of such a node's tasks until it regards the node as down.
        """
        nodes = [node for node in cluster.lab.nodes if node is not without]
        with ThreadPoolExecutor(len(nodes) + 1) as pool:
            of_swarm = pool.submit(cluster.remains)
            on_nodes = list(pool.map(_on, nodes))
        found = {
            f"{node.name}: {one}" for node, things in zip(nodes, on_nodes, strict=True) for one in things
        }
        in_swarm = set(of_swarm.result())
        kept = {one for one in in_swarm if without is not None and one.startswith("network ")}
        listed = {f"{cluster.first.name}: {one}" for one in kept}
        return cls(frozenset((found | in_swarm) - kept - listed))

    def left_since(self, before: Census) -> list[str]:
        return sorted(self.things - before.things)


def wait_rid_of_jobs(cluster: LabCluster, before: Census, within_s: float) -> float:
    """Like `wait_clean`, but ignore mounts and links, which change if the platform's containers restart."""
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
    """Wait until all is as in `before`; return the seconds since `since` (monotonic)."""
    while left := Census.of(cluster, without=without).left_since(before):
        assert time.monotonic() < since + within_s, f"left {within_s:g} s later: {left}"
        time.sleep(0.1)
    clean_s = time.monotonic() - since
    assert clean_s < within_s, f"clean after {clean_s:.1f} s only"
    return clean_s


def processes_of(cluster: LabCluster, node: Node, text: str) -> list[int]:
    """Return the processes on a node, including those in containers, whose command line contains a text."""
    return [pid for pid, _, _, command in _processes(node.machine.first()) if text in command]


def _on(node: Node) -> set[str]:
    with node.docker() as client:
        containers, networks = client.containers(all=True), client.networks()
    platform = {one["Id"] for one in containers if _is_platform(one["Labels"])}
    first = node.machine.first()
    found = {f"container {one['Id']} ({one['Names'][0]})" for one in containers}
    found |= {f"network {one['Id']} ({one['Name']})" for one in networks}
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
    """Return id, start time, container id and command line of all processes below `first`."""
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
    """Return a process's stat fields from its state on; none if it has ended."""
    line = "".join(_lines(f"/proc/{pid}/stat"))
    return line.rpartition(")")[2].split()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []
