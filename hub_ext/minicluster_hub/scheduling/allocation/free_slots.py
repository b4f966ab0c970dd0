"""Free slots, indexed by their number on each node: one plan looks for room ten thousand times.

A slot of which one half is held counts only for jobs that ask for halves, and these get it first: so GPUs
stay whole as long as possible. Numbers of slots and halves: see jobs.slot_numbers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import ceil

from minicluster_hub.jobs.slot_numbers import (
    FIRST_HALF,
    HALF,
    halves,
    is_half,
    other_half,
    size,
    slot_of,
    total,
)
from minicluster_hub.scheduling.old_names import also_read_as

Places = tuple[tuple[str, tuple[int, ...]], ...]
"""(node, slots) of each task of a gang, in the order of the tasks' index; each node appears once. The slots
are numbers, ascending: of whole slots, or of halves."""


@also_read_as(take="remove", give="add")
class FreeSlots:
    """The free slots of each node that is up, including nodes that have none.

    Nodes with the same number of free slots are ordered by name. whole_only: nodes whose slots cannot be
    divided into halves.
    """

    __slots__ = ("_count", "_halves", "_nodes_with", "_slots", "_whole_only")

    def __init__(
        self, slots: Mapping[str, Iterable[int]] | None = None, whole_only: Collection[str] = ()
    ) -> None:
        self._slots: dict[str, tuple[int, ...]] = {}
        self._halves: dict[str, tuple[int, ...]] = {}
        """Free halves whose other half is held, of nodes that have some."""
        self._whole_only = frozenset(whole_only)
        self._nodes_with: list[list[str]] = []
        self._count = 0
        for node in sorted(slots or {}):
            numbers = sorted((slots or {})[node])
            self._set(node, tuple(number for number in numbers if not is_half(number)))
            self._set_halves(node, filter(is_half, numbers))

    @property
    def count(self) -> float:
        """How many slots are free, halves included."""
        return self._count + HALF * sum(map(len, self._halves.values())) if self._halves else self._count

    @property
    def names(self) -> tuple[str, ...]:
        """All nodes that are up, by name."""
        return tuple(self._slots)

    def on(self, node: str) -> tuple[int, ...]:
        """Return the free whole slots of a node; () if it is not up."""
        return self._slots.get(node, ())

    def numbers(self, node: str) -> tuple[int, ...]:
        """Return the free whole slots of a node, and then the free halves of the others."""
        return (*self.on(node), *self._halves.get(node, ()))

    def room(self, node: str, slots_per_replica: float) -> int:
        """Return how many replicas fit on a node."""
        if slots_per_replica >= 1:
            return int(len(self.on(node)) // slots_per_replica)
        whole = 0 if node in self._whole_only else len(self.on(node))
        return len(self._halves.get(node, ())) + 2 * whole

    def usable(self, node: str, slots_per_replica: float) -> float:
        """Return how many slots of a node are free for a job with such replicas."""
        return len(self.on(node)) if slots_per_replica >= 1 else HALF * self.room(node, slots_per_replica)

    def first(self, node: str, replicas: int, slots_per_replica: float) -> tuple[int, ...]:
        """Return the slots of a node that so many replicas get. Halves of divided slots come first."""
        if slots_per_replica >= 1:
            return self.on(node)[: int(replicas * slots_per_replica)]
        divided = self._halves.get(node, ())[:replicas]
        more = [half for slot in self.on(node) for half in halves(slot)]
        return tuple(sorted((*divided, *more[: replicas - len(divided)])))

    def __contains__(self, node: str) -> bool:
        return node in self._slots

    def nodes(self, at_least: float = 1) -> Iterator[str]:
        """Yield the nodes with at least that many free slots, the fullest first.

        For less than a slot: the nodes with a free half first.
        """
        if at_least < 1:
            yield from self._for_halves(self.nodes())
            return
        for nodes in self._nodes_with[ceil(at_least) :]:
            yield from nodes

    def roomy_nodes(self, at_least: float = 1) -> Iterator[str]:
        """Yield the nodes with at least that many free slots, the emptiest first; halves as in `nodes`."""
        if at_least < 1:
            yield from self._for_halves(self.roomy_nodes())
            return
        for nodes in reversed(self._nodes_with[ceil(at_least) :]):
            yield from nodes

    def _for_halves(self, nodes: Iterator[str]) -> Iterator[str]:
        yield from sorted(self._halves)
        yield from (node for node in nodes if node not in self._halves and node not in self._whole_only)

    def replicas_that_fit(
        self, slots_per_replica: float, *, one_replica_per_node: bool = False, scatter: bool = False
    ) -> int:
        """Return how many replicas fit. scatter: the old name of `one_replica_per_node`."""
        one = one_replica_per_node or scatter
        if slots_per_replica < 1:
            nodes = self.nodes(slots_per_replica)
            return sum(1 if one else self.room(node, slots_per_replica) for node in nodes)
        slots_per_replica, replicas = int(slots_per_replica), 0
        for free in range(slots_per_replica, len(self._nodes_with)):
            replicas += len(self._nodes_with[free]) * (1 if one else free // slots_per_replica)
        return replicas

    def has(self, places: Places) -> bool:
        """Whether all these slots are free."""
        return all(self._is_free(node, number) for node, slots in places for number in slots)

    def part(self, node: str, slots: Iterable[int]) -> Iterator[int]:
        """Yield what is free of these slots: of a divided one, a half."""
        for number in slots:
            if self._is_free(node, number):
                yield number
            elif not is_half(number) and node in self._halves:
                yield from (half for half in halves(number) if half in self._halves[node])

    def all(self) -> Places:
        return tuple((node, numbers) for node in self._slots if (numbers := self.numbers(node)))

    def copy(self) -> FreeSlots:
        other = FreeSlots()
        other._slots = dict(self._slots)
        other._halves = dict(self._halves)
        other._whole_only = self._whole_only
        other._nodes_with = [list(nodes) for nodes in self._nodes_with]
        other._count = self._count
        return other

    def without(self, nodes: Iterable[str]) -> FreeSlots:
        """Return the free slots of the other nodes."""
        other = self.copy()
        for node in nodes:
            if node in other:
                other._drop(node)
                other._halves.pop(node, None)
                del other._slots[node]
        return other

    def remove(self, places: Places) -> None:
        """Remove slots; those of nodes that are down are ignored. Raises ValueError if one is not free."""
        for node, slots in places:
            if node not in self:
                continue
            whole = [number for number in slots if not is_half(number)]
            left = tuple(slot for slot in self.on(node) if slot not in whole)
            if len(left) + len(whole) != len(self.on(node)):
                raise ValueError(f"slots {slots} of {node} are not all free: {self.on(node)}")
            self._set(node, left)
            for half in filter(is_half, slots):
                self._remove_half(node, half)

    def add(self, places: Places) -> None:
        """Add slots; those of nodes that are down are ignored."""
        for node, slots in places:
            if node not in self:
                continue
            whole = [number for number in slots if not is_half(number)]
            self._set(node, tuple(sorted({*self.on(node), *whole})))
            for half in filter(is_half, slots):
                self._add_half(node, half)
            if whole and node in self._halves:
                self._set_halves(node, (half for half in self._halves[node] if slot_of(half) not in whole))

    def _is_free(self, node: str, number: int) -> bool:
        return slot_of(number) in self.on(node) or number in self._halves.get(node, ())

    def _remove_half(self, node: str, half: int) -> None:
        """Remove half a slot; if the slot was whole, its other half stays."""
        free = self._halves.get(node, ())
        if half in free:
            self._set_halves(node, (one for one in free if one != half))
        elif slot_of(half) in self.on(node):
            self._set(node, tuple(slot for slot in self.on(node) if slot != slot_of(half)))
            self._set_halves(node, (*free, other_half(half)))
        else:
            raise ValueError(f"{half} of {node}, half of slot {slot_of(half)}, is not free")

    def _add_half(self, node: str, half: int) -> None:
        """Add half a slot; with its other half, it becomes whole."""
        free = self._halves.get(node, ())
        if other_half(half) in free:
            self._set_halves(node, (one for one in free if one != other_half(half)))
            self._set(node, tuple(sorted((*self.on(node), slot_of(half)))))
        elif slot_of(half) not in self.on(node):
            self._set_halves(node, {*free, half})

    def _set_halves(self, node: str, free: Iterable[int]) -> None:
        if numbers := tuple(sorted(free)):
            self._halves[node] = numbers
        else:
            self._halves.pop(node, None)

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


def count_slots(places: Places) -> float:
    """Return how many slots these are; two halves count as one."""
    return sum(total(slots) if slots and slots[-1] >= FIRST_HALF else len(slots) for _, slots in places)


def replicas_in(places: Places, slots_per_replica: float) -> int:
    """Return how many replicas have these slots."""
    return int(count_slots(places) // slots_per_replica)


def largest_parts(places: Places, slots: float) -> Places:
    """Return that many of these slots, from the nodes with the most of them first."""
    chosen: list[tuple[str, tuple[int, ...]]] = []
    for node, here in sorted(places, key=lambda place: (-len(place[1]), place[0])):
        if slots > 0:
            numbers = ceil(slots / size(here[0]))
            chosen.append((node, here[:numbers]))
            slots -= total(here)
    return tuple(sorted(chosen))


def common(places: Places, free: FreeSlots) -> Places:
    """Return the slots of `places` that are free."""
    both = ((node, tuple(free.part(node, slots))) for node, slots in places)
    return tuple((node, slots) for node, slots in both if slots)


def joined(places: Places, more: Places) -> Places:
    """Return the union; a node that is in both gets one entry with all its slots."""
    by_node = dict(places)
    for node, slots in more:
        by_node[node] = tuple(sorted((*by_node.get(node, ()), *slots)))
    return tuple(by_node.items())
