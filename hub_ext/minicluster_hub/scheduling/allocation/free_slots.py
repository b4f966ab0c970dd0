"""Free slots, indexed by their number on each node: one plan looks for room ten thousand times."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping

from minicluster_hub.scheduling.old_names import also_read_as

Places = tuple[tuple[str, tuple[int, ...]], ...]
"""(node, slots) of each task of a gang, in the order of the tasks' index; each node appears once."""


@also_read_as(take="remove", give="add")
class FreeSlots:
    """The free slots of each node that is up, including nodes that have none.

    Nodes with the same number of free slots are ordered by name.
    """

    __slots__ = ("_count", "_nodes_with", "_slots")

    def __init__(self, slots: Mapping[str, Iterable[int]] | None = None) -> None:
        self._slots: dict[str, tuple[int, ...]] = {}
        self._nodes_with: list[list[str]] = []
        self._count = 0
        for node in sorted(slots or {}):
            self._set(node, tuple(sorted((slots or {})[node])))

    @property
    def count(self) -> int:
        """How many slots are free."""
        return self._count

    @property
    def names(self) -> tuple[str, ...]:
        """All nodes that are up, by name."""
        return tuple(self._slots)

    def on(self, node: str) -> tuple[int, ...]:
        """Return the free slots of a node; () if it is not up."""
        return self._slots.get(node, ())

    def __contains__(self, node: str) -> bool:
        return node in self._slots

    def nodes(self, at_least: int = 1) -> Iterator[str]:
        """Yield the nodes with at least that many free slots, the fullest first."""
        for nodes in self._nodes_with[at_least:]:
            yield from nodes

    def roomy_nodes(self, at_least: int = 1) -> Iterator[str]:
        """Yield the nodes with at least that many free slots, the emptiest first."""
        for nodes in reversed(self._nodes_with[at_least:]):
            yield from nodes

    def replicas_that_fit(
        self, slots_per_replica: int, *, one_replica_per_node: bool = False, scatter: bool = False
    ) -> int:
        """Return how many replicas fit. scatter: the old name of `one_replica_per_node`."""
        one = one_replica_per_node or scatter
        replicas = 0
        for free in range(slots_per_replica, len(self._nodes_with)):
            replicas += len(self._nodes_with[free]) * (1 if one else free // slots_per_replica)
        return replicas

    def has(self, places: Places) -> bool:
        """Whether all these slots are free."""
        return all(set(slots) <= set(self.on(node)) for node, slots in places)

    def all(self) -> Places:
        return tuple((node, slots) for node, slots in self._slots.items() if slots)

    def copy(self) -> FreeSlots:
        other = FreeSlots()
        other._slots = dict(self._slots)
        other._nodes_with = [list(nodes) for nodes in self._nodes_with]
        other._count = self._count
        return other

    def without(self, nodes: Iterable[str]) -> FreeSlots:
        """Return the free slots of the other nodes."""
        other = self.copy()
        for node in nodes:
            if node in other:
                other._drop(node)
                del other._slots[node]
        return other

    def remove(self, places: Places) -> None:
        """Remove slots; those of nodes that are down are ignored. Raises ValueError if one is not free."""
        for node, slots in places:
            if node not in self:
                continue
            left = tuple(slot for slot in self.on(node) if slot not in slots)
            if len(left) + len(slots) != len(self.on(node)):
                raise ValueError(f"slots {slots} of {node} are not all free: {self.on(node)}")
            self._set(node, left)

    def add(self, places: Places) -> None:
        """Add slots; those of nodes that are down are ignored."""
        for node, slots in places:
            if node in self:
                self._set(node, tuple(sorted({*self.on(node), *slots})))

    def _set(self, node: str, slots: tuple[int, ...]) -> None:
        if node in self._slots:
            self._drop(node)
        while len(self._nodes_with) <= len(slots):
            self._nodes_with.append([])
        self._slots[node] = slots
        insort(self._nodes_with[len(slots)], node)
        self._count += len(slots)

    def _drop(self, node: str) -> None:
        slots = self._slots[node]
        nodes = self._nodes_with[len(slots)]
        del nodes[bisect_left(nodes, node)]
        self._count -= len(slots)


def count_slots(places: Places) -> int:
    return sum(len(slots) for _, slots in places)


def largest_parts(places: Places, slots: int) -> Places:
    """Return that many of these slots, from the nodes with the most of them first."""
    chosen: list[tuple[str, tuple[int, ...]]] = []
    for node, here in sorted(places, key=lambda place: (-len(place[1]), place[0])):
        if slots > 0:
            chosen.append((node, here[:slots]))
            slots -= len(here)
    return tuple(sorted(chosen))


def common(places: Places, free: FreeSlots) -> Places:
    """Return the slots of `places` that are free."""
    both = ((node, tuple(slot for slot in slots if slot in free.on(node))) for node, slots in places)
    return tuple((node, slots) for node, slots in both if slots)


def joined(places: Places, more: Places) -> Places:
    """Return the union; a node that is in both gets one entry with all its slots."""
    by_node = dict(places)
    for node, slots in more:
        by_node[node] = tuple(sorted((*by_node.get(node, ()), *slots)))
    return tuple(by_node.items())
