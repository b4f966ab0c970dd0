"""Quotas as a lab writes them: by user, by group, or for everybody; which of them is whose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import floor, inf, isfinite

from minicluster_hub.scheduling.base import Snapshot
from minicluster_hub.scheduling.reservations.reservation import GROUP, GroupsOf

EVERYBODY = "*"
"""Whose quota those have who have none of their own, and none of a group."""

YOURS = "your quota"

DAY_S = 86_400.0
PERIOD_S = 30 * DAY_S
"""For which GPU-hours are counted."""

KINDS = {
    "slots": "slots at once, those of notebook servers among them",
    "jobs": "jobs that run at once; more wait",
    "open_jobs": "jobs that wait or run; more are refused",
    "gpu_hours": "GPU-hours in the last 30 days; then jobs wait",
    "run_s": "seconds that a job may run",
    "cpus": "CPU cores at once, by the share that slots have of their nodes",
    "memory_gb": "GB of memory at once, by the share that slots have of their nodes",
    "slots_together": "slots at once of all members of a group together",
    "storage_gb": "GB that a user may keep with the job service, instead of its default",
}
"""What a quota may limit."""


class QuotaWrong(ValueError):
    """Settings that are no quotas; the message is one sentence for who made them."""


@dataclass(frozen=True, slots=True)
class SlotShare:
    """The most CPU cores and GB of memory that a slot brings, as its share of its node; 0: not known."""

    cpus: float = 0.0
    memory_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class Quota:
    """What a user may have, None: as much as there is.

    slots: at once, those of notebook servers among them. jobs: that run at once.
    gpu_hours: in 30 days. run_s: of one job at a stretch, until its time limit ends it.
    open_jobs: that wait or run. slots_together: at once, of all members of a group, whatever else they may.
    cpus, memory_gb: at once. Jobs ask for slots only, so both are counted by what slots bring (SlotShare).
    storage_gb: kept with the job service, None: the service's default (Quotas.storage_gb).
    """

    slots: float | None = None
    jobs: float | None = None
    gpu_hours: float | None = None
    run_s: float | None = None
    open_jobs: float | None = None
    slots_together: float | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    storage_gb: float | None = None

    def in_slots(self, share: SlotShare) -> Quota:
        """Return the quota with no more slots than its CPU cores and its memory are enough for."""
        limits = (self.slots, _slots(self.cpus, share.cpus), _slots(self.memory_gb, share.memory_gb))
        return replace(self, slots=min((limit for limit in limits if limit is not None), default=None))

    def or_more(self, other: Quota) -> Quota:
        """Return of each kind the more generous one."""
        both = ((one.name, getattr(self, one.name), getattr(other, one.name)) for one in fields(Quota))
        return Quota(**{name: None if None in (a, b) else max(a, b) for name, a, b in both})

    def as_dict(self) -> dict[str, float]:
        """Return what is limited, by kind."""
        return {name: limit for name in KINDS if (limit := getattr(self, name)) is not None}


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class Quotas:
    """`of_users`: by name, "group:NAME" or "*". A user's own goes instead of the groups', of which the most
    generous counts, and these instead of everybody's.
    """

    of_users: Mapping[str, Quota] = field(default_factory=dict[str, Quota])
    groups_of: GroupsOf = field(default=lambda _: (), compare=False)
    slot_share: SlotShare = SlotShare()

    @classmethod
    def read(cls, fields: Mapping[str, Mapping[str, float | None]]) -> Quotas:
        """Return what the settings say. Raises QuotaWrong."""
        for owner, values in fields.items():
            if owner == GROUP:
                raise QuotaWrong(f"{owner!r} names no group; want group:NAME")
            for name, value in values.items():
                _check(owner, name, value)
        return cls({owner: Quota(**values) for owner, values in fields.items()})

    def of(self, owner: str) -> Quota:
        return self._written_for(owner).in_slots(self.slot_share)

    def _written_for(self, owner: str) -> Quota:
        own = self.of_users.get(owner)
        if own is not None:
            return own
        mine = [
            self.of_users[key] for group in self.groups_of(owner) if (key := GROUP + group) in self.of_users
        ]
        if not mine:
            return self.of_users.get(EVERYBODY, NO_QUOTA)
        best = mine[0]
        for quota in mine[1:]:
            best = best.or_more(quota)
        return best

    def together(self) -> dict[str, float]:
        """Return the slots that members of groups may have together, by group."""
        return {
            name.removeprefix(GROUP): quota.slots_together
            for name, quota in sorted(self.of_users.items())
            if quota.slots_together is not None
        }

    def of_one_job(self, owner: str) -> Quota:
        """Return an owner's quota, with as many slots as one job of theirs can ever have."""
        quota, together = self.of(owner), self.together()
        most = [together[group] for group in self.groups_of(owner) if group in together]
        return (
            replace(quota, slots=min([*most, inf if quota.slots is None else quota.slots])) if most else quota
        )

    def storage_gb(self, owner: str) -> float | None:
        """Return what an owner may keep: their own limit, else their groups' greatest, else everybody's.

        None: nobody said, so the default counts. A quota that says nothing of storage hides none that does.
        """
        own, groups = self.of_users.get(owner, NO_QUOTA), self.groups_of(owner)
        if own.storage_gb is not None:
            return own.storage_gb
        theirs = (self.of_users.get(GROUP + group, NO_QUOTA).storage_gb for group in groups)
        everybodys = self.of_users.get(EVERYBODY, NO_QUOTA).storage_gb
        return max((limit for limit in theirs if limit is not None), default=everybodys)

    def owners_of(self, snapshot: Snapshot) -> set[str]:
        return {job.owner for job in snapshot.jobs} | {server.owner for server in snapshot.servers}


def _slots(limit: float | None, each: float) -> int | None:
    """Return how many slots are within a limit; None: any number, or nobody knows what a slot brings."""
    return None if limit is None or not each else floor(limit / each + 1e-9)


def _check(owner: str, name: str, value: object) -> None:
    if name not in KINDS:
        raise QuotaWrong(f"the quota of {owner!r} has {name!r}; there are: {', '.join(KINDS)}")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and value >= 0 and isfinite(value)):  # pyright: ignore
        raise QuotaWrong(f"the quota of {owner!r} has {name} = {value!r}; want a number from 0 on")
    if name == "slots_together" and not owner.startswith(GROUP):
        raise QuotaWrong(f"the quota of {owner!r} has slots_together, which only groups have (group:NAME)")


def over_hours(quota: Quota, used_hours: float) -> str:
    return f"over your quota of {quota.gpu_hours:g} GPU-hours in 30 days: {used_hours:.1f} are used"
