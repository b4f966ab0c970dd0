"""Custom policies: which Python objects are one, and the checks of their plans, which may be anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from types import ModuleType
from typing import Any

from minicluster_hub.scheduling.allocation.free_slots import Places
from minicluster_hub.scheduling.base import Grant, JobView, Plan, Snapshot

AGAIN_S = 1.0
"""The shortest time until a policy is asked again if nothing happens, whatever its `again_at`."""


class PolicyFailed(Exception):
    """A policy raised, took too long, or returned an invalid plan. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class CustomPlan:
    """answer: the lab's own `plan`. An invalid plan raises PolicyFailed."""

    answer: Callable[[Snapshot], object]
    preemptive: bool = False
    elastic: bool = False

    def plan(self, snapshot: Snapshot) -> Plan:
        return sound(snapshot, self.answer(snapshot))


def policy_in(found: object, options: Mapping[str, Any]) -> CustomPlan:
    """Return the policy that a module, a class or a function defines. Raises PolicyFailed."""
    if isinstance(found, ModuleType):
        found = getattr(found, "Policy", None) or getattr(found, "plan", None)
    if isinstance(found, type):
        made = found(**options)
        answer = getattr(made, "plan", None)
        preemptive = getattr(made, "preemptive", getattr(made, "moves_running", False))
        flags = {"preemptive": bool(preemptive), "elastic": bool(getattr(made, "elastic", False))}
    elif options:
        raise PolicyFailed("it is a function and takes no options; only a dataclass Policy has options")
    else:
        answer, flags = found, {}
    if not callable(answer):
        raise PolicyFailed("it has no function plan(snapshot), and no class Policy with such a method")
    return CustomPlan(answer, **flags)


def sound(snapshot: Snapshot, returned: object) -> Plan:
    """Return the plan if it is valid. Raises PolicyFailed.

    Valid: at most one grant for each job, only for jobs of the snapshot, each with a number of replicas that
    the job may have; and each running job that is not preemptible keeps what it has.
    """
    if not isinstance(returned, Plan):
        raise PolicyFailed(f"plan() returned {_shown(returned)}, which is not a Plan")
    jobs = {job.job_id: job for job in snapshot.jobs}
    seen: set[int] = set()
    for grant in returned.grants:
        job_id = _granted(grant, jobs, snapshot.now)
        if job_id in seen:
            raise PolicyFailed(f"it planned job {job_id} twice")
        seen.add(job_id)
    for job in snapshot.running:
        if not job.is_preemptible(snapshot.now) and job.job_id not in seen:
            raise PolicyFailed(f"it left out job {job.job_id}, which must keep its slots")
    reserved = _reserved(returned.reserved, snapshot)
    return replace(
        returned,
        again_at=_again_at(returned.again_at, snapshot.now),
        head_blocks=bool(returned.head_blocks),
        reserved=reserved,
    )


def fitted(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return the plan without the jobs that have ended since it was made."""
    jobs = {job.job_id: job for job in snapshot.jobs}
    return replace(plan, grants=tuple(grant for grant in plan.grants if grant.job_id in jobs))


def _granted(grant: object, jobs: Mapping[int, JobView], now: float) -> int:
    """Return the job of a valid grant. Raises PolicyFailed."""
    if not isinstance(grant, Grant):
        raise PolicyFailed(f"its plan contains {_shown(grant)}, which is not a Grant")
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
    """Return the fewest and the most replicas that a job may be given.

    A quota may have left a job that lost a node less than its minimum; it may still be given the minimum.
    """
    if job.runs and not job.is_preemptible(now):
        return job.replicas, job.replicas
    return job.min_replicas, max(job.min_replicas, job.max_replicas)


def _again_at(value: object, now: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise PolicyFailed(f"its again_at is {_shown(value)}; it must be a moment like snapshot.now, or None")
    return max(float(value), now + AGAIN_S)


def _reserved(value: Any, snapshot: Snapshot) -> Places:
    """Return the plan's reserved slots, each node once. Raises PolicyFailed."""
    slots: dict[str, set[int]] = {}
    try:
        for node, on_it in value:
            slots.setdefault(node, set()).update(on_it)
    except (TypeError, ValueError) as error:
        raise PolicyFailed(f"its `reserved` is {_shown(value)}; it must be places") from error
    for node, on_it in slots.items():
        if any(
            type(slot) is not int or not 0 <= slot < snapshot.topology.slots.get(node, 0) for slot in on_it
        ):
            raise PolicyFailed(
                f"it reserves slots {_shown(sorted(on_it, key=repr))} of {node}, which do not exist"
            )
    return tuple((node, tuple(sorted(on_it))) for node, on_it in slots.items())


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
