"""Quotas: jobs that exceed them are held back before the policy sees them, whichever policy is active.

A user's jobs use the quota by priority, then in the order of their submission. A job that has to wait for the
quota blocks the user's later jobs; otherwise small jobs would starve it. The same holds for the jobs of a
group whose members have a common limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from minicluster_hub.jobs.records import Wait
from minicluster_hub.jobs.slot_numbers import total
from minicluster_hub.scheduling.allocation.free_slots import count_slots
from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.limits import NO_QUOTA, YOURS, Quota, Quotas, over_hours

HOURS_LOOK_S = 300.0
"""How soon quotas of GPU-hours are checked again: by then, old hours may no longer count."""


@dataclass(frozen=True, slots=True)
class QuotaResult:
    """snapshot: without the jobs that quotas hold back. reasons: why these wait. again_at: as in Plan."""

    snapshot: Snapshot
    reasons: Mapping[int, str] = field(default_factory=dict[int, str])
    again_at: float | None = None

    def waits(self) -> Iterator[Wait]:
        """Yield the jobs that are held back, last in the queue and without an expected start."""
        for position, (job_id, reason) in enumerate(sorted(self.reasons.items()), len(self.snapshot.waiting)):
            yield Wait(job_id, position + 1, reason, None)


def apply_quotas(snapshot: Snapshot, quotas: Quotas, gpu_hours: Callable[[str], float]) -> QuotaResult:
    """Return the snapshot without the jobs that must wait for quotas of their owners or groups.

    The maximum of a job with a range is reduced, so that no plan exceeds the quota. Running jobs keep their
    slots. gpu_hours: of an owner, in the last 30 days.
    """
    by_owner: dict[str, list[JobView]] = {}
    for job in snapshot.jobs:
        by_owner.setdefault(job.owner, []).append(job)
    limited = {owner: jobs for owner, jobs in by_owner.items() if quotas.of(owner) != NO_QUOTA}
    shares = [
        _Share.of(snapshot, {owner}, jobs, quotas.of(owner), gpu_hours) for owner, jobs in limited.items()
    ]
    found = _without(QuotaResult(snapshot), shares)
    for group, slots in quotas.together().items():
        members = {owner for owner in quotas.owners_of(snapshot) if group in quotas.groups_of(owner)}
        jobs = [job for job in found.snapshot.jobs if job.owner in members]
        whose = f"the quota of group {group}"
        share = _Share.of(snapshot, members, jobs, Quota(slots=slots), gpu_hours, whose)
        found = _without(found, [share])
    return found


def _without(found: QuotaResult, shares: Sequence[_Share]) -> QuotaResult:
    if not shares:
        return found
    snapshot = found.snapshot
    reasons = {job_id: why for share in shares for job_id, why in share.reasons.items()}
    most = {job_id: replicas for share in shares for job_id, replicas in share.most().items()}
    jobs = (job for job in snapshot.jobs if job.job_id not in reasons)
    again_at = snapshot.now + HOURS_LOOK_S if any(share.over_hours for share in shares) else found.again_at
    left = replace(snapshot, jobs=tuple(_cut(job, most) for job in jobs))
    return QuotaResult(left, {**found.reasons, **reasons}, again_at)


def _cut(job: JobView, most: Mapping[int, int]) -> JobView:
    replicas = most.get(job.job_id, job.max_replicas)
    return job if replicas >= job.max_replicas else replace(job, max_replicas=replicas)


@dataclass(slots=True)
class _Share:
    """How far the jobs of an owner or a group use their quota.

    held_slots: by jobs and servers now. given_slots: by the waiting jobs in `passed`, which the quota allows.
    growing: running jobs that may get more slots. whose: the quota's name in messages to its owner.
    """

    quota: Quota
    held_slots: float
    running: list[JobView]
    growing: list[JobView]
    used_hours: float
    whose: str = YOURS
    passed: list[JobView] = field(default_factory=list[JobView])
    given_slots: float = 0
    reasons: dict[int, str] = field(default_factory=dict[int, str])

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        owners: Collection[str],
        jobs: Sequence[JobView],
        quota: Quota,
        gpu_hours: Callable[[str], float],
        whose: str = YOURS,
    ) -> _Share:
        running = [job for job in jobs if job.runs]
        servers = sum(total(server.slots) for server in snapshot.servers if server.owner in owners)
        growing = [
            job for job in running if job.job_id in snapshot.growing or job.is_preemptible(snapshot.now)
        ]
        share = cls(
            quota,
            servers + sum(count_slots(job.places) for job in running),
            running,
            growing,
            0.0 if quota.gpu_hours is None else sum(map(gpu_hours, owners)),
            whose,
        )
        share._receive(sorted((job for job in jobs if not job.runs), key=_quota_order))
        return share

    @property
    def over_hours(self) -> bool:
        return self.quota.gpu_hours is not None and self.used_hours >= self.quota.gpu_hours

    def most(self) -> dict[int, int]:
        """Return the most replicas of each job: the first job that can use the rest of the quota gets it."""
        if self.quota.slots is None and not self.over_hours:
            return {}
        left = 0.0 if self.over_hours else _number(self.quota.slots) - self.held_slots - self.given_slots
        found = {job.job_id: job.replicas for job in self.running}
        for job in sorted([*self.passed, *self.growing], key=_quota_order):
            has = job.replicas or job.min_replicas
            more = max(0, min(job.max_replicas - has, left // job.slots_per_replica))
            left -= more * job.slots_per_replica
            found[job.job_id] = int(has + more)
        return found

    def _receive(self, waiting: Sequence[JobView]) -> None:
        first_held: JobView | None = None
        for job in waiting:
            need = _need(job)
            if need > _number(self.quota.slots):
                self.reasons[job.job_id] = (
                    f"needs {need:g} slots; {self.whose} is {self.quota.slots:g} at once"
                )
                continue
            reason = self._over(need) or self._behind(first_held)
            if reason:
                self.reasons[job.job_id] = reason
                first_held = first_held or job
            else:
                self.passed.append(job)
                self.given_slots += need

    def _over(self, need: float) -> str:
        quota, before = self.quota, len(self.passed)
        if self.over_hours:
            return over_hours(quota, self.used_hours)
        if self.held_slots + self.given_slots + need > _number(quota.slots):
            text = f"over {self.whose} of {quota.slots:g} slots at once: {self.held_slots:g} in use"
            theirs = "your jobs" if self.whose == YOURS else "the group's jobs"
            return f"{text}, {self.given_slots:g} for {theirs} before it" if before else text
        if len(self.running) + before + 1 > _number(quota.jobs):
            text = f"over your quota of {quota.jobs:g} jobs at once: {len(self.running)} run"
            return f"{text}, {before} of yours before it" if before else text
        return ""

    def _behind(self, first_held: JobView | None) -> str:
        if first_held is None:
            return ""
        job = f"your job {first_held.job_id}" if self.whose == YOURS else f"job {first_held.job_id}"
        return f"waits for {job}, which {self.whose} holds back"


def _quota_order(job: JobView) -> tuple[int, float, int]:
    return -job.priority, *job.submit_order


def _need(job: JobView) -> float:
    return job.min_replicas * job.slots_per_replica


def _number(limit: float | None) -> float:
    return inf if limit is None else limit
