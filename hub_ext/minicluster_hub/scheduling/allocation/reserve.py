"""Slots that are not free yet, but to be had: those of warm gangs, those that are being freed, and those of
running jobs that the plan left out. As few as possible lose theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, common
from minicluster_hub.scheduling.base import JobView, WarmGang


@dataclass(frozen=True, slots=True)
class Leaving:
    """The slots of a node that are being freed."""

    places: Places


Holder = WarmGang | Leaving | JobView

_ONE_BY_ONE = 64
"""How many holders are asked one after the other; then all the others are asked at once."""


class Reserve:
    """The holders in the order in which they give way, what is free, and all that is free or theirs.

    outside: what is free and not kept for somebody.
    """

    def __init__(self, holders: Iterable[Holder], free: FreeSlots, kept: Places = ()) -> None:
        self.free = free
        self.keeps = bool(kept)
        self.outside = free.copy() if kept else free
        self.outside.take(common(kept, free))
        self.all = free.copy()
        self._holders = {_key(holder): holder for holder in holders}
        self._on: dict[str, list[Holder]] = {}
        for holder in self._holders.values():
            self.all.give(holder.places)
            for node, _ in holder.places:
                self._on.setdefault(node, []).append(holder)

    def find(self, job: JobView, chunks: int, place: Callable[[FreeSlots], Places | None]) -> Places | None:
        """Return places on what is free and on the slots of as few holders as it takes."""
        if not self._holders or not _has_room(job, chunks, self.all):
            return None
        free = self.free.copy()
        for holder in islice(self._holders.values(), _ONE_BY_ONE):
            free.give(holder.places)
            places = place(free) if _has_room(job, chunks, free) else None
            if places is not None:
                return places
        return place(self.all) if len(self._holders) > _ONE_BY_ONE else None

    def take(self, places: Places) -> list[Holder]:
        """Take slots, and return who had some of them. What these had besides is free."""
        wanted = dict(places)
        gone = {
            _key(holder): holder
            for node in wanted
            for holder in self._on.get(node, ())
            if _key(holder) in self._holders and _meet(holder.places, wanted)
        }
        for holder in gone.values():
            del self._holders[_key(holder)]
            self._give(holder.places)
        if self.keeps:
            self.outside.take(common(places, self.outside))
        self.free.take(places)
        self.all.take(places)
        return list(gone.values())

    def give(self, places: Places) -> None:
        self._give(places)
        self.all.give(places)

    def _give(self, places: Places) -> None:
        self.free.give(places)
        if self.keeps:
            self.outside.give(places)

    def left(self) -> list[Holder]:
        """Return those who keep what they have."""
        return list(self._holders.values())


def _key(holder: Holder) -> tuple[str, int | str]:
    match holder:
        case WarmGang(gang_id):
            return "gang", gang_id
        case Leaving(((node, _),)):
            return "node", node
        case JobView(job_id):
            return "job", job_id
    raise TypeError(f"{holder!r} holds no slots")


def _has_room(job: JobView, chunks: int, free: FreeSlots) -> bool:
    return free.most_chunks(job.chunk_slots, scatter=job.scatter) >= chunks


def _meet(one: Places, other: dict[str, tuple[int, ...]]) -> bool:
    return any(set(slots) & set(other.get(node, ())) for node, slots in one)
