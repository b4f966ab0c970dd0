"""The table of slots: which are free, which job has which, and which holders lose theirs first.

Policies try their order in such a table (`planning.trial`). `assign` then places their plan in another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple

from minicluster_hub.jobs.slot_numbers import overlap
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common, count_slots
from minicluster_hub.scheduling.allocation.moves import Moves
from minicluster_hub.scheduling.base import JobView, WarmGang


@dataclass(frozen=True, slots=True)
class ReleasedNode:
    """The slots of one node that are being released."""

    places: Places


Holder = WarmGang | ReleasedNode | JobView


class GangShape(NamedTuple):
    """What decides whether a gang fits: gangs of the same shape fit in the same places."""

    replicas: int
    slots_per_replica: float
    one_replica_per_node: bool


_ONE_BY_ONE = 64
"""If the placement refuses enough slots, this many more holders are added one by one, then all others."""


class Allocation:
    """The slots of jobs while a plan is carried out.

    free: slots that no holder has. unreserved: the free slots that the plan does not reserve.
    places: by job, in the order in which they were assigned.
    preemptible: holders that may lose their slots, in that order; warm gangs come first.
    """

    def __init__(self, free: FreeSlots, preemptible: Iterable[Holder] = (), reserved: Places = ()) -> None:
        self.free = free
        self.reserves = bool(reserved)
        self.unreserved = free.copy() if reserved else free
        self.unreserved.remove(common(reserved, free))
        self.places: dict[int, Places] = {}
        self.preemptible = {_key(holder): holder for holder in preemptible}
        self._preemptible_slots = sum(count_slots(holder.places) for holder in self.preemptible.values())
        self._holders_on: dict[str, list[Holder]] = {}
        for holder in self.preemptible.values():
            for node, _ in holder.places:
                self._holders_on.setdefault(node, []).append(holder)
        # Shapes that do not fit even if all holders are preempted. Slots only get fewer, so they never will.
        self._never_fit: set[GangShape] = set()

    @property
    def warm(self) -> list[WarmGang]:
        """Warm gangs that still have their slots."""
        holders = takewhile(lambda holder: isinstance(holder, WarmGang), self.preemptible.values())
        return [holder for holder in holders if isinstance(holder, WarmGang)]

    def assign(self, job_id: int, places: Places) -> None:
        """Assign slots to a job. A preemptible holder of some of them loses all its slots.

        Raises ValueError if some are neither free nor preemptible.
        """
        unknown = [node for node, _ in places if node not in self.free]
        if unknown:
            raise ValueError(f"job {job_id} was placed on nodes that are not up: {unknown}")
        if self.preemptible:
            for holder in [one for node, slots in places for one in self._holders_of(node, slots)]:
                if self.retain(holder):
                    self._release(holder.places)
        if self.reserves:
            self.unreserved.remove(common(places, self.unreserved))
        self.free.remove(places)
        self.places[job_id] = places

    def retain(self, holder: Holder) -> bool:
        """Protect a holder from preemption from now on; return whether it still had its slots."""
        had = self.preemptible.pop(_key(holder), None) is not None
        self._preemptible_slots -= count_slots(holder.places) if had else 0
        return had

    def move(self, moves: Moves) -> None:
        """Assign a gang its slots, and new ones to the jobs that move out of its way."""
        for job_id in moves.moved:
            self._release(self.places[job_id])
        for job_id, places in ((moves.job_id, moves.places), *moves.moved.items()):
            self.assign(job_id, places)
        self._never_fit.clear()

    def obtainable(self) -> FreeSlots:
        """Return the slots that are free or preemptible."""
        free = self.free.copy()
        for holder in self.preemptible.values():
            free.add(holder.places)
        return free

    def preempt(
        self,
        job: JobView,
        replicas: int,
        place: Callable[[FreeSlots], Places | None],
        may_preempt: Callable[[Holder], bool] | None = None,
    ) -> Places | None:
        """Return places on free slots and on those of as few holders as possible; `assign` takes them.

        may_preempt: which holders; None: all. Of several jobs with the same shape, call this first for those
        that may preempt more.
        """
        shape = GangShape(replicas, job.slots_per_replica, job.one_replica_per_node)
        slots = self.free.count + self._preemptible_slots
        if not self.preemptible or slots < replicas * job.slots_per_replica or shape in self._never_fit:
            return None
        holders = iter(self.preemptible.values())
        offers = self._offers(shape, filter(may_preempt, holders) if may_preempt else holders)
        return next(filter(None, map(place, offers)), None)

    def _offers(self, shape: GangShape, holders: Iterator[Holder]) -> Iterator[FreeSlots]:
        """Yield slots with room for a gang: those of the fewest holders, then of more and more holders."""
        asked, opened = self._first_with_room(shape, holders)
        if asked is None:
            self._never_fit.add(shape)
            return
        if asked:
            there = {id(holder) for node in opened for holder in self._holders_on[node]}
            yield self._of_fewest(shape, [holder for holder in asked if id(holder) in there])
        free = self.free.copy()
        for holder in asked:
            free.add(holder.places)
        if asked:
            yield free
        for holder in islice(holders, _ONE_BY_ONE):
            free.add(holder.places)
            yield free
        rest = list(holders)
        for holder in rest:
            free.add(holder.places)
        if rest:
            yield free

    def _first_with_room(
        self, shape: GangShape, holders: Iterator[Holder]
    ) -> tuple[list[Holder] | None, set[str]]:
        """Return the first holders whose slots make room, and the nodes where they do.

        None instead of the holders: all of them together do not make room.
        """
        replicas, slots_per_replica, one_replica_per_node = shape
        missing = replicas - self.free.replicas_that_fit(
            slots_per_replica, one_replica_per_node=one_replica_per_node
        )
        asked: list[Holder] = []
        opened: set[str] = set()
        if missing <= 0:
            return asked, opened
        free = self.free.copy()
        for holder in holders:
            asked.append(holder)
            for node, slots in holder.places:
                before = free.room(node, slots_per_replica)
                free.add(((node, slots),))
                more = free.room(node, slots_per_replica) - before
                if more and not (one_replica_per_node and before):
                    missing -= 1 if one_replica_per_node else more
                    opened.add(node)
            if missing <= 0:
                return asked, opened
        return None, opened

    def _of_fewest(self, shape: GangShape, asked: list[Holder]) -> FreeSlots:
        """Return the free slots and those of the holders that the gang needs; the last are spared first."""
        replicas, slots_per_replica, one_replica_per_node = shape
        free = self.free.copy()
        for holder in asked:
            free.add(holder.places)
        for holder in reversed(asked):
            free.remove(holder.places)
            if (
                free.replicas_that_fit(slots_per_replica, one_replica_per_node=one_replica_per_node)
                < replicas
            ):
                free.add(holder.places)
        return free

    def _holders_of(self, node: str, slots: tuple[int, ...]) -> Iterator[Holder]:
        for holder in self._holders_on.get(node, ()):
            if any(name == node and overlap(slots, theirs) for name, theirs in holder.places):
                yield holder

    def _release(self, places: Places) -> None:
        self.free.add(places)
        if self.reserves:
            self.unreserved.add(places)


def _key(holder: Holder) -> tuple[str, int | str]:
    match holder:
        case WarmGang():
            return "gang", holder.gang_id
        case ReleasedNode():
            return "node", holder.places[0][0]
        case JobView():
            return "job", holder.job_id
