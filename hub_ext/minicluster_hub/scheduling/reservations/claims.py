"""Slots that are not for everybody: reservations, maintenance windows and drained nodes are all claims.

A claim says which slots (N of these nodes, or all of them) are for whom (a user, a group, nobody), from when
to when. A drained node is a claim for nobody on all its slots, from now on; a window one with an end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.holders import clock_time, until

GROUP = "group:"
"""Before a group's name, where a user's name could stand."""

LAPSE_S = 900.0
"""A reservation that none of its holders had slots of, or waited for, so long after its begin is over."""

GroupsOf = Callable[[str], Sequence[str]]
"""Of an owner."""


def belongs(owner: str, holder: str, groups_of: GroupsOf) -> bool:
    """Whether a holder, a user or a group, is this owner or one of the owner's groups."""
    if holder.startswith(GROUP):
        return holder.removeprefix(GROUP) in groups_of(owner)
    return owner == holder


class ReservationKind(StrEnum):
    RESERVATION = "reservation"
    MAINTENANCE = "maintenance"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Claim:
    """holder: for whom, "" for nobody. nodes: (): whichever. slots: how many, None: all of the nodes.

    ends_at: None: until it is taken back. note: why, for those who wait.
    used: whether a holder was there since it began; one that was not lapses.
    """

    reservation_id: int
    kind: ReservationKind
    holder: str
    nodes: tuple[str, ...]
    slots: int | None
    begins_at: float
    ends_at: float | None
    note: str = ""
    used: bool = False

    def due(self, now: float) -> bool:
        return self.begins_at <= now

    def over(self, now: float) -> bool:
        return self.ends_at is not None and self.ends_at <= now

    def lapses_at(self) -> float | None:
        """Return when it is over for want of use, None if it is not."""
        return self.begins_at + LAPSE_S if self.holder and not self.used else None

    def keeps_off(self, job: JobView, now: float, groups_of: GroupsOf) -> bool:
        """Whether a job that starts now may not have the slots: another's, which would run into the claim."""
        if self.holder and belongs(job.owner, self.holder, groups_of):
            return False
        return self.due(now) or runs_past(job, self.begins_at, now)

    def told(self, now: float) -> str:
        """Say it to one who waits for it."""
        why = f" ({self.note})" if self.note else ""
        if self.due(now):
            return f"{self._what()}{'' if self.ends_at is None else f' {until(self.ends_at, now)}'}{why}"
        begins = clock_time(self.begins_at, now)
        return f"{self._what()} from {begins} on{why}; with a --timeout that ends before, it may start"

    def _what(self) -> str:
        where = " and ".join(self.nodes) if len(self.nodes) < 3 else f"{len(self.nodes)} nodes"
        plural = len(self.nodes) != 1
        if self.kind is ReservationKind.RESERVATION:
            count = (
                "all slots" if self.slots is None else f"{self.slots} slot{'' if self.slots == 1 else 's'}"
            )
            on = f" of {where}" if where else ""
            is_are = "is" if self.slots == 1 else "are"
            return f"{count}{on} {is_are} reserved for {named(self.holder)}"
        state = "drained" if self.kind is ReservationKind.DRAIN else "in maintenance"
        return f"{where} {'are' if plural else 'is'} {state}"


def named(holder: str) -> str:
    """Return "ada", or "group vision"."""
    return f"group {holder.removeprefix(GROUP)}" if holder.startswith(GROUP) else holder


def runs_past(job: JobView, moment: float, now: float) -> bool:
    """Whether a job that runs, or starts now, may still run at that moment."""
    if job.time_limit_s is None:
        return True
    return (job.since if job.runs else now) + job.time_limit_s > moment


def attended(claim: Claim, snapshot: Snapshot, groups_of: GroupsOf) -> bool:
    """Whether a holder has slots, or waits for some."""
    owners = {job.owner for job in snapshot.jobs} | {server.owner for server in snapshot.servers}
    return any(belongs(owner, claim.holder, groups_of) for owner in owners)
