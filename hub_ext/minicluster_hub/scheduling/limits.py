"""Quotas as administrators write them: for users, groups or everybody; and which of them apply to a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import floor, inf, isfinite

from minicluster_hub.scheduling.base import Snapshot
from minicluster_hub.scheduling.reservations.reservation import GROUP, GroupsOf

EVERYBODY = "*"
"""The quota of users who have neither their own quota nor one of a group."""

YOURS = "your quota"

DAY_S = 86_400.0
PERIOD_S = 30 * DAY_S
"""The period for which GPU-hours are counted."""

KINDS = {
    "slots": "slots at once, including those of notebook servers",
    "jobs": "jobs that run at once; more wait",
    "open_jobs": "jobs that wait or run; more are refused",
    "gpu_hours": "GPU-hours in the last 30 days; then jobs wait",
    "run_s": "seconds that a job may run",
    "cpus": "CPU cores at once; each slot counts as its share of its node",
    "memory_gb": "GB of memory at once; each slot counts as its share of its node",
    "slots_together": "slots at once of all members of a group together",
    "storage_gb": "GB that a user may store with the job service; replaces its default",
}
"""The kinds of limits in a quota."""


class QuotaWrong(ValueError):
    """Invalid quotas or shares. The message is one sentence for the administrator."""


@dataclass(frozen=True, slots=True)
class SlotShare:
    """A slot's share of its node's CPU cores and GB of memory: the largest in the cluster; 0: unknown."""

    cpus: float = 0.0
    memory_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a user or group; None: no limit.

    slots: at once, including those of notebook servers. jobs: running at once.
    gpu_hours: in 30 days. run_s: run time of a job without interruption.
    open_jobs: waiting or running. slots_together: at once, of all members of a group, in addition to their
        own quotas.
    cpus, memory_gb: at once. Jobs ask for slots only, so each slot counts as its share (SlotShare).
    storage_gb: stored with the job service; None: the service's default (Quotas.storage_gb).
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
        """Return the quota with `slots` reduced to as many as `cpus` and `memory_gb` allow."""
        limits = (self.slots, _slots(self.cpus, share.cpus), _slots(self.memory_gb, share.memory_gb))
        return replace(self, slots=min((limit for limit in limits if limit is not None), default=None))

    def or_more(self, other: Quota) -> Quota:
        """Return the quota with the more generous limit of each kind."""
        both = ((one.name, getattr(self, one.name), getattr(other, one.name)) for one in fields(Quota))
        return Quota(**{name: None if None in (a, b) else max(a, b) for name, a, b in both})

    def as_dict(self) -> dict[str, float]:
        """Return the limits by kind."""
        return {name: limit for name in KINDS if (limit := getattr(self, name)) is not None}


NO_QUOTA = Quota()


@dataclass(frozen=True, slots=True)
class Quotas:
    """of_users: by user, "group:NAME" or "*". A user's own quota replaces those of groups and of "*"; the
    quotas of a user's groups replace that of "*". Of several groups, the most generous limits count.
    """

    of_users: Mapping[str, Quota] = field(default_factory=dict[str, Quota])
    groups_of: GroupsOf = field(default=lambda _: (), compare=False)
    slot_share: SlotShare = SlotShare()

    @classmethod
    def read(cls, fields: Mapping[str, Mapping[str, float | None]]) -> Quotas:
        """Return the quotas of the settings. Raises QuotaWrong."""
        for owner, values in fields.items():
            if owner == GROUP:
                raise QuotaWrong(f"{owner!r} names no group; write group:NAME")
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
        """Return the slots that all members of a group may have together, by group."""
        return {
            name.removeprefix(GROUP): quota.slots_together
            for name, quota in sorted(self.of_users.items())
            if quota.slots_together is not None
        }

    def at_submission(self, owner: str) -> Quota:
        """Return an owner's quota for admission: `slots` is the most that one job of the owner can have."""
        quota, together = self.of(owner), self.together()
        most = [together[group] for group in self.groups_of(owner) if group in together]
        return (
            replace(quota, slots=min([*most, inf if quota.slots is None else quota.slots])) if most else quota
        )

    def storage_gb(self, owner: str) -> float | None:
        """Return an owner's storage limit: the owner's, else the greatest of their groups, else everybody's.

        None: none of these has one, so the default counts. A quota without a storage limit is ignored here.
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
    """Return how many slots a limit allows; None: no limit, or the share of a slot is unknown."""
    return None if limit is None or not each else floor(limit / each + 1e-9)


def _check(owner: str, name: str, value: object) -> None:
    if name not in KINDS:
        raise QuotaWrong(f"the quota of {owner!r} has {name!r}; there are: {', '.join(KINDS)}")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and value >= 0 and isfinite(value)):  # pyright: ignore
        raise QuotaWrong(f"the quota of {owner!r} has {name} = {value!r}; it must be a number, at least 0")
    if name == "slots_together" and not owner.startswith(GROUP):
        raise QuotaWrong(f"the quota of {owner!r} has slots_together, which only groups have (group:NAME)")


def over_hours(quota: Quota, used_hours: float) -> str:
    return f"over your quota of {quota.gpu_hours:g} GPU-hours in 30 days: {used_hours:.1f} are used"
