"""A reservation as the scheduler sees it: which slots, for which user or group, from when until when.

A maintenance window is a reservation of whole nodes for nobody, and a drained node is one without an end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.holders import clock_time, until

GROUP = "group:"
"""The prefix of a holder that is a group."""

LAPSE_S = 900.0
"""A reservation ends if in its first LAPSE_S seconds no holder has held slots or waited for some."""

GroupsOf = Callable[[str], Sequence[str]]
"""The groups of an owner."""


def belongs(owner: str, holder: str, groups_of: GroupsOf) -> bool:
    """Whether the holder of a reservation is this owner, or one of the owner's groups."""
    if holder.startswith(GROUP):
        return holder.removeprefix(GROUP) in groups_of(owner)
    return owner == holder


class ReservationKind(StrEnum):
    RESERVATION = "reservation"
    MAINTENANCE = "maintenance"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class ReservationView:
    """One reservation, maintenance window or drained node.

    holder: a user, "group:NAME", or "" if nobody may use the slots.
    nodes: where the slots are; (): on any nodes. slots: how many; None: all slots of the nodes.
    ends_at: None: when an administrator ends it. note: the reason, shown to users whose jobs wait.
    used: whether a holder has held slots or waited for some since it began; an unused one lapses.
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

    def begun(self, now: float) -> bool:
        return self.begins_at <= now

    def over(self, now: float) -> bool:
        return self.ends_at is not None and self.ends_at <= now

    def lapses_at(self) -> float | None:
        """Return when it lapses if no holder has used it by then; None if it does not lapse."""
        return self.begins_at + LAPSE_S if self.holder and not self.used else None

    def excludes(self, job: JobView, now: float, groups_of: GroupsOf) -> bool:
        """Whether a job that starts now may not use the slots: it is no holder's, and may overlap in time."""
        if self.holder and belongs(job.owner, self.holder, groups_of):
            return False
        return self.begun(now) or runs_past(job, self.begins_at, now)

    def describe(self, now: float) -> str:
        """Describe it to a user whose job waits for it."""
        why = f" ({self.note})" if self.note else ""
        if self.begun(now):
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


def in_use(reservation: ReservationView, snapshot: Snapshot, groups_of: GroupsOf) -> bool:
    """Whether a holder has a job or a notebook server in this snapshot."""
    owners = {job.owner for job in snapshot.jobs} | {server.owner for server in snapshot.servers}
    return any(belongs(owner, reservation.holder, groups_of) for owner in owners)
