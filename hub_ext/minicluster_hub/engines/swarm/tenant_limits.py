"""How much of its node a tenant's container may take, and what stays for the platform: pure.

Docker's own default is no limit: one fork bomb, or one list that grows, would take everybody's work along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minicluster_hub.engines.swarm.view import SwarmNode

PIDS = 4096
"""Processes and threads of one container: a data loader has some dozens, a fork bomb as many as it gets."""
_MOST_RESERVED = 4
"""A node's reserve is at most this part of it, so that a small machine can work as well."""
_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class NodeReserve:
    """What tenants leave free on each node: bytes of memory, and CPU cores."""

    memory_bytes: int = 2 << 30
    cpus: float = 0.5


def tenants_memory_bytes(node: SwarmNode, reserve: NodeReserve) -> int:
    """Return how much memory the tenants of a node may have together; 0: the node does not tell."""
    return node.memory_bytes - min(reserve.memory_bytes, node.memory_bytes // _MOST_RESERVED)


def tenants_cpus(node: SwarmNode, reserve: NodeReserve) -> float:
    """Return how many cores the tenants of a node may have together; 0.0: the node does not tell."""
    return node.cpus - min(reserve.cpus, node.cpus / _MOST_RESERVED)


def limits(memory_bytes: int, cpus: float, pids: int) -> dict[str, Any]:
    """Return Docker's `Limits`; what is 0 has none."""
    wanted = {"MemoryBytes": memory_bytes, "NanoCPUs": int(cpus * _S), "Pids": pids}
    return {name: value for name, value in wanted.items() if value}


def shm_bytes(asked_bytes: int, memory_bytes: int) -> int:
    """Return the size of /dev/shm: at most half of the container's memory, which it is part of.

    The kernel cannot free it by ending a process.
    """
    return min(asked_bytes, memory_bytes // 2) if memory_bytes else asked_bytes
