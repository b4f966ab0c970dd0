"""A lab's own policy: what may be one, and whether what it plans can be, for it may answer anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from types import ModuleType
from typing import Any

from minicluster_hub.scheduling.allocation.free_slots import Places
from minicluster_hub.scheduling.base import Grant, JobView, Plan, Snapshot

AGAIN_S = 1.0
"""It is not asked more often than that if nothing happens, whatever it says."""


class PolicyFailed(Exception):
    """A policy that raised, took too long, or planned what cannot be; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class CustomPlan:
    """`answer`: what the lab wrote. Raises PolicyFailed if it plans what cannot be."""

    answer: Callable[[Snapshot], object]
    moves_running: bool = False
    elastic: bool = False

    def plan(self, snapshot: Snapshot) -> Plan:
        return sound(snapshot, self.answer(snapshot))


def policy_in(found: object, options: Mapping[str, Any]) -> CustomPlan:
    """Return the policy that a module, a class or a function is. Raises PolicyFailed."""
    if isinstance(found, ModuleType):
        found = getattr(found, "Policy", None) or getattr(found, "plan", None)
    if isinstance(found, type):
        made = found(**options)
        answer = getattr(made, "plan", None)
        flags = {name: bool(getattr(made, name, False)) for name in ("moves_running", "elastic")}
    elif options:
        raise PolicyFailed("it is a function, and takes no options; a dataclass Policy has some")
    else:
        answer, flags = found, {}
    if not callable(answer):
        raise PolicyFailed("it has no function plan(snapshot), and no class Policy with such a method")
    return CustomPlan(answer, **flags)


def sound(snapshot: Snapshot, returned: object) -> Plan:
    """Return what was planned if it can be. Raises PolicyFailed.

    Each grant is for one known job, with as many replicas as that may have; who must keep what it has does.
    """
    if not isinstance(returned, Plan):
        raise PolicyFailed(f"plan() returned {_shown(returned)}, which is no Plan")
    jobs = {job.job_id: job for job in snapshot.jobs}
    seen: set[int] = set()
    for grant in returned.grants:
        job_id = _granted(grant, jobs, snapshot.now)
        if job_id in seen:
            raise PolicyFailed(f"it planned job {job_id} twice")
        seen.add(job_id)
    for job in snapshot.running:
        if job.fixed(snapshot.now) and job.job_id not in seen:
            raise PolicyFailed(f"it left out job {job.job_id}, which must keep what it has")
    kept = _kept(returned.kept, snapshot)
    return replace(
        returned,
        again_at=_again_at(returned.again_at, snapshot.now),
        in_turn=bool(returned.in_turn),
        kept=kept,
    )


def fitted(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return a plan for a snapshot that is a moment younger: jobs may be gone since."""
    jobs = {job.job_id: job for job in snapshot.jobs}
    return replace(plan, grants=tuple(grant for grant in plan.grants if grant.job_id in jobs))


def _granted(grant: object, jobs: Mapping[int, JobView], now: float) -> int:
    """Return for which job a grant is. Raises PolicyFailed."""
    if not isinstance(grant, Grant):
        raise PolicyFailed(f"its plan has {_shown(grant)}, which is no Grant")
    if type(grant.job_id) is not int or grant.job_id not in jobs:
        raise PolicyFailed(f"it planned job {_shown(grant.job_id)}, which neither waits nor runs")
    job = jobs[grant.job_id]
    least, most = _range(job, now)
    as_it_is = job.runs and grant.replicas == job.replicas
    if type(grant.replicas) is not int or not (as_it_is or least <= grant.replicas <= most):
        asked = f"{least}" if least == most else f"{least} to {most}"
        raise PolicyFailed(
            f"it gave {_shown(grant.replicas)} replicas to job {job.job_id}, which may have {asked}"
        )
    return job.job_id


def _range(job: JobView, now: float) -> tuple[int, int]:
    """Return how many replicas a job may be given: the fewest and the most.

    One that lost a node may be given its minimum though a quota has less left for it: it does not grow then.
    """
    if job.fixed(now):
        return job.replicas, job.replicas
    return job.min_replicas, max(job.min_replicas, job.max_replicas)


def _again_at(value: object, now: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise PolicyFailed(
            f"its again_at is {_shown(value)}; it has to be a moment like snapshot.now, or None"
        )
    return max(float(value), now + AGAIN_S)


def _kept(value: Any, snapshot: Snapshot) -> Places:
    """Return slots kept free, each node once. Raises PolicyFailed."""
    slots: dict[str, set[int]] = {}
    try:
        for node, on_it in value:
            slots.setdefault(node, set()).update(on_it)
    except (TypeError, ValueError) as error:
        raise PolicyFailed(f"what it keeps is {_shown(value)}; it has to be places") from error
    for node, on_it in slots.items():
        if any(
            type(slot) is not int or not 0 <= slot < snapshot.topology.slots.get(node, 0) for slot in on_it
        ):
            raise PolicyFailed(
                f"it keeps slots {_shown(sorted(on_it, key=repr))} of {node}, which are not there"
            )
    return tuple((node, tuple(sorted(on_it))) for node, on_it in slots.items())


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
