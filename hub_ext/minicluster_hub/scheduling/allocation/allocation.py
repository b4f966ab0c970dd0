"""The one table of slots: what is free, which job was given which slots, and who loses theirs first.

Policies try their order on one (`planning.trial`), and `assign` places in one what they answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common, count_slots
from minicluster_hub.scheduling.allocation.moves import Moves
from minicluster_hub.scheduling.base import JobView, WarmGang


@dataclass(frozen=True, slots=True)
class ReleasedNode:
    """The slots of one node that are being released."""

    places: Places


Holder = WarmGang | ReleasedNode | JobView
Gang = tuple[int, int, bool]
"""Replicas, slots of each, and whether each needs a node of its own: what fits for one fits for the other."""

_ONE_BY_ONE = 64
"""If the placement refuses slots that are enough, so many more holders are added one by one, then all."""


class Allocation:
    """An allocation in the making.

    free: slots that nobody has. unreserved: those of them that the plan does not reserve for anybody.
    places: by job, in the order in which they were given.
    preemptible: who may lose their slots, the first to lose them first; warm gangs before all others.
    """

    def __init__(self, free: FreeSlots, preemptible: Iterable[Holder] = (), reserved: Places = ()) -> None:
        self.free = free
        self.reserves = bool(reserved)
        self.unreserved = free.copy() if reserved else free
        self.unreserved.take(common(reserved, free))
        self.places: dict[int, Places] = {}
        self.preemptible = {_key(holder): holder for holder in preemptible}
        self._preemptible_slots = sum(count_slots(holder.places) for holder in self.preemptible.values())
        self._holders_on: dict[str, list[Holder]] = {}
        for holder in self.preemptible.values():
            for node, _ in holder.places:
                self._holders_on.setdefault(node, []).append(holder)
        # Gangs that do not fit whoever is preempted: as slots are given away, they never will.
        self._never_fit: set[Gang] = set()

    @property
    def warm(self) -> list[WarmGang]:
        """The warm gangs that still have their slots."""
        holders = takewhile(lambda holder: isinstance(holder, WarmGang), self.preemptible.values())
        return [holder for holder in holders if isinstance(holder, WarmGang)]

    def give(self, job_id: int, places: Places) -> None:
        """Give a job these slots. Preemptible holders of some of them lose all that they have.

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
            self.unreserved.take(common(places, self.unreserved))
        self.free.take(places)
        self.places[job_id] = places

    def retain(self, holder: Holder) -> bool:
        """Let nobody preempt a holder any more; return whether it still had its slots."""
        had = self.preemptible.pop(_key(holder), None) is not None
        self._preemptible_slots -= count_slots(holder.places) if had else 0
        return had

    def move(self, moves: Moves) -> None:
        """Give a gang its slots, and those that move out of its way their new ones."""
        for job_id in moves.moved:
            self._release(self.places[job_id])
        for job_id, places in ((moves.job_id, moves.places), *moves.moved.items()):
            self.give(job_id, places)
        self._never_fit.clear()

    def obtainable(self) -> FreeSlots:
        """Return what is free or preemptible."""
        free = self.free.copy()
        for holder in self.preemptible.values():
            free.give(holder.places)
        return free

    def preempt(
        self,
        job: JobView,
        replicas: int,
        place: Callable[[FreeSlots], Places | None],
        may_preempt: Callable[[Holder], bool] | None = None,
    ) -> Places | None:
        """Return places on free slots and on those of as few holders as it takes, who lose them by `give`.

        may_preempt: None: all of them. Of gangs of one size, those that may preempt more have to ask first.
        """
        gang = replicas, job.slots_per_replica, job.scatter
        slots = self.free.count + self._preemptible_slots
        if not self.preemptible or slots < replicas * job.slots_per_replica or gang in self._never_fit:
            return None
        holders = iter(self.preemptible.values())
        offers = self._offers(gang, filter(may_preempt, holders) if may_preempt else holders)
        return next(filter(None, map(place, offers)), None)

    def _offers(self, gang: Gang, holders: Iterator[Holder]) -> Iterator[FreeSlots]:
        """Yield slots with room for a gang: with those of the fewest holders, then of ever more of them."""
        asked, opened = self._first_with_room(gang, holders)
        if asked is None:
            self._never_fit.add(gang)
            return
        if asked:
            there = {id(holder) for node in opened for holder in self._holders_on[node]}
            yield self._of_fewest(gang, [holder for holder in asked if id(holder) in there])
        free = self.free.copy()
        for holder in asked:
            free.give(holder.places)
        if asked:
            yield free
        for holder in islice(holders, _ONE_BY_ONE):
            free.give(holder.places)
            yield free
        rest = list(holders)
        for holder in rest:
            free.give(holder.places)
        if rest:
            yield free

    def _first_with_room(self, gang: Gang, holders: Iterator[Holder]) -> tuple[list[Holder] | None, set[str]]:
        """Return the first holders whose slots make room, None if all do not, and the nodes where they do."""
        replicas, slots_per_replica, scatter = gang
        missing = replicas - self.free.replicas_that_fit(slots_per_replica, scatter=scatter)
        asked: list[Holder] = []
        room: dict[str, int] = {}
        opened: set[str] = set()
        if missing <= 0:
            return asked, opened
        for holder in holders:
            asked.append(holder)
            for node, slots in holder.places:
                before = room[node] if node in room else len(self.free.on(node))
                room[node] = after = before + len(slots)
                more = after // slots_per_replica - before // slots_per_replica
                if more and not (scatter and before >= slots_per_replica):
                    missing -= 1 if scatter else more
                    opened.add(node)
            if missing <= 0:
                return asked, opened
        return None, opened

    def _of_fewest(self, gang: Gang, asked: list[Holder]) -> FreeSlots:
        """Return what is free or of the holders without whom there is no room; the last are spared first."""
        replicas, slots_per_replica, scatter = gang
        free = self.free.copy()
        for holder in asked:
            free.give(holder.places)
        for holder in reversed(asked):
            free.take(holder.places)
            if free.replicas_that_fit(slots_per_replica, scatter=scatter) < replicas:
                free.give(holder.places)
        return free

    def _holders_of(self, node: str, slots: tuple[int, ...]) -> Iterator[Holder]:
        wanted = set(slots)
        for holder in self._holders_on.get(node, ()):
            if any(name == node and wanted.intersection(theirs) for name, theirs in holder.places):
                yield holder

    def _release(self, places: Places) -> None:
        self.free.give(places)
        if self.reserves:
            self.unreserved.give(places)


def _key(holder: Holder) -> tuple[str, int | str]:
    match holder:
        case WarmGang():
            return "gang", holder.gang_id
        case ReleasedNode():
            return "node", holder.places[0][0]
        case JobView():
            return "job", holder.job_id
