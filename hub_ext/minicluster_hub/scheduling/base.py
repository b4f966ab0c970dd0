"""The interfaces of scheduling and what they are told.

policy:    plan(snapshot) -> grants, in order. Says how many nodes each waiting job gets.
placement: place(request, nodes, free) -> which nodes and slots, or None.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from minicluster_hub.models import ServerRecord

Places = tuple[tuple[str, tuple[int, ...]], ...]
"""(node, slots) of each task of a gang, in the order of their index."""

FreeSlots = dict[str, tuple[int, ...]]
"""The free slots of each node that is up."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A waiting job: `min_nodes` to `max_nodes` nodes with `slots_per_node` slots on each.

    goes_on: the gang of an attempt that lost a node. What is left of it is ready at once.
    settles: that node fell silent a moment ago; who joins the gang's network now waits for it in vain.
    """

    job_id: int
    owner: str
    min_nodes: int
    max_nodes: int
    slots_per_node: int
    submitted_at: float
    image: str | None = None
    shm_bytes: int | None = None
    goes_on: int | None = None
    settles: bool = False


@dataclass(frozen=True, slots=True)
class RunningJob:
    """`ends_by`: when its time limit is over, None if it has none."""

    job_id: int
    owner: str
    places: Places
    ends_by: float | None


@dataclass(frozen=True, slots=True)
class WarmGang:
    """A gang without a job: free slots to everybody, a quick start to its owner."""

    gang_id: int
    owner: str
    places: Places
    slots_per_node: int
    idle_since: float
    image: str | None = None
    shm_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """A running fault-tolerant job that may have up to `nodes` more nodes; `on`: those that it has."""

    request: JobRequest
    nodes: int
    on: frozenset[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`free` does not hold the slots of the warm gangs; `slots` counts all of each node's.

    servers: the notebook servers that hold slots. growing: jobs that take what nobody waits for.
    """

    now: float
    waiting: tuple[JobRequest, ...]
    running: tuple[RunningJob, ...]
    warm: tuple[WarmGang, ...]
    slots: Mapping[str, int]
    free: FreeSlots
    servers: tuple[ServerRecord, ...] = ()
    growing: tuple[Growth, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    job_id: int
    nodes: int


class Policy(Protocol):
    def plan(self, snapshot: Snapshot) -> tuple[Grant, ...]:
        """Return who starts now, first come first placed, and on how many nodes."""
        ...


class Placement(Protocol):
    def place(self, request: JobRequest, nodes: int, free: FreeSlots) -> Places | None:
        """Return `nodes` nodes with the request's slots on each, or None if they are not there."""
        ...


def take(free: FreeSlots, places: Places) -> FreeSlots:
    """Return the free slots without those of `places`."""
    left = dict(free)
    for node, slots in places:
        left[node] = tuple(slot for slot in left[node] if slot not in slots)
    return left


def give(free: FreeSlots, gangs: Iterable[WarmGang]) -> FreeSlots:
    """Return the free slots with those of warm gangs. Nodes that are down stay out."""
    more = dict(free)
    for gang in gangs:
        for node, slots in gang.places:
            if node in more:
                more[node] = tuple(sorted({*more[node], *slots}))
    return more


def without(free: FreeSlots, nodes: Collection[str]) -> FreeSlots:
    """Return the free slots of the other nodes."""
    return {node: slots for node, slots in free.items() if node not in nodes}


def fitting_nodes(free: FreeSlots, slots_per_node: int) -> int:
    """Return how many nodes have that many free slots."""
    return sum(len(slots) >= slots_per_node for slots in free.values())
