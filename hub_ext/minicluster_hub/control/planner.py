"""Asks the scheduler which jobs start where, and stores its decisions."""

from __future__ import annotations

import logging
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from minicluster.wire import MOST as MOST_ID
from minicluster.wire import JobSpec, JobState
from minicluster_hub.control.batch_queue import (
    granted_places,
    lacking_slots,
    placed_gangs,
    queue_waits,
    requests,
    unsubmitted_wait,
)
from minicluster_hub.control.forecast_worker import ForecastWorker
from minicluster_hub.control.leasing import Leasing
from minicluster_hub.control.quarantine import Quarantine
from minicluster_hub.control.scheduler_input import SchedulerFacts, snapshot_of, waiting_view
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.engines.base import Engine
from minicluster_hub.engines.capabilities import BatchQueue
from minicluster_hub.jobs.gang_state import ClusterState, LifecycleLimits, silent_nodes
from minicluster_hub.jobs.records import GangTarget, JobRecord, StoredState, Wait
from minicluster_hub.policy.active_policy import PlanFailed, PolicyManager
from minicluster_hub.policy.custom_policy import CustomPolicy
from minicluster_hub.scheduling.allocation import granted
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places
from minicluster_hub.scheduling.allocation.prepared import prepared_places
from minicluster_hub.scheduling.base import Snapshot, Topology
from minicluster_hub.scheduling.quotas import QuotaResult
from minicluster_hub.scheduling.reasons import explain
from minicluster_hub.scheduling.reservations.enforcement import (
    Enforcement,
    decisions_before_policy,
    enforce,
    until_next_reservation,
)
from minicluster_hub.scheduling.reservations.reserved_slots import Exclusions
from minicluster_hub.scheduling.scheduler import Decision, Schedule
from minicluster_hub.scheduling.standing import Planned
from minicluster_hub.store import SlotTaken, Store, StoreError
from minicluster_hub.usage.accounting import UsageAccounting
from minicluster_hub.usage.reservations import ReservationBook

GROWTH_PAUSE_S = 5.0
"""How long a job gets no more nodes after it lost one, or after one could not join it."""
REFUSED_GROWTH_PAUSE_S = 60.0
"""The same after a node was refused: another try at once would fail again."""
_PLAIN = JobRecord(
    0,
    "",
    JobSpec(payload_sha256="0" * 64),
    JobState.QUEUED,
    "",
    0,
    None,
    None,
    0,
    0,
    None,
    None,
    None,
    None,
    None,
)
"""A job at which no policy fails."""

MOST = 100
"""If more jobs than these seem to be at fault, the fault is in the planning itself."""
_Job = TypeVar("_Job")
_Raises = Callable[[Sequence[_Job]], bool]


class JobsAtFault(Exception):
    """Planning raises an exception (`__cause__`) with these jobs and works without them."""

    def __init__(self, jobs: Sequence[JobRecord]) -> None:
        super().__init__(f"planning raises at jobs {', '.join(str(job.id) for job in jobs)}")
        self.jobs = tuple(jobs)


class Planner:
    """Starts jobs by leasing slots for them. The reconciler does the rest."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        status_cache: StatusCache,
        policy_manager: PolicyManager,
        accounting: UsageAccounting,
        limits: LifecycleLimits,
        log: logging.Logger,
        quarantine: Quarantine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._engine = engine
        self._status_cache = status_cache
        self._policy_manager = policy_manager
        self._accounting = accounting
        self._limits = limits
        self._log = log
        self._leasing = Leasing(store, status_cache, quarantine, self.pause_growth, log)
        self._clock = clock
        self._no_growth: dict[int, float] = {}
        self._ending_since: dict[int, float] = {}
        self._delayed_since: Mapping[int, float] = {}
        self._delayed_until: Mapping[int, float] = {}
        self._gangs_end_at: Mapping[int, float] = {}
        """When another queue takes the slots of gangs back, by gang."""
        self._forecast = ForecastWorker(policy_manager, self._explain, log)
        self.settling: frozenset[int] = frozenset()
        """Jobs that lost a node a moment ago: plan again soon."""
        self.again_at: float | None = None
        """When the plan may change without any event, in seconds since the epoch."""
        self.snapshot = Snapshot(0.0, (), FreeSlots(), Topology({}))
        """The last snapshot planned for, without the jobs that quotas and reservations hold back."""
        self._whole = self.snapshot
        self._quota_result = QuotaResult(self.snapshot)
        self._enforced = Enforcement(self.snapshot, Exclusions(self.snapshot))
        self.reservations = ReservationBook(store, log)

    def plan(self, state: ClusterState) -> bool:
        """Start jobs, make room for others; return whether anything was done. Raises JobsAtFault."""
        try:
            with self._blaming(state):
                return self._plan(state)
        except PlanFailed as failed:
            self._policy_manager.blame(failed)
            return True

    def _plan(self, state: ClusterState) -> bool:
        if (queue := self._engine.batch_queue) is not None:
            return self._plan_granted(state, queue)
        now = state.observation.now
        self._whole = snapshot = self._snapshot(state)
        self.reservations.update_and_expire(snapshot)
        self._quota_result, self._enforced = self._apply_quotas_and_reservations(snapshot)
        self.snapshot = snapshot = self._enforced.snapshot
        for urgent in decisions_before_policy(self._enforced, self._policy_manager.placement):
            if self._apply(urgent, now):
                self._policy_manager.drop_answer()
                return True
        done = self._apply(self._decide(snapshot), now)
        if not done:
            self._policy_manager.ask_again(snapshot)
            self._explain()
            self._status_cache.set_closed(self.reservations.closed(now))
        if snapshot.waiting:
            self._forecast.update(self._enforced)
        return done

    def _plan_granted(self, state: ClusterState, queue: BatchQueue) -> bool:
        """Start what the other queue has granted. No policy runs: only quotas hold jobs back from it."""
        self._whole = snapshot = granted.owned(self._snapshot(state))
        self._quota_result = self._accounting.apply_quotas(snapshot)
        self.snapshot = snapshot = self._quota_result.snapshot
        self._enforced = Enforcement(snapshot, Exclusions(snapshot))
        self.again_at = min(self._moments(), default=None)
        running_on = granted.reused(snapshot, self._gangs_end_at)
        asked = granted.needs(snapshot, running_on)
        answer = queue.request(requests(asked, state.stored), placed_gangs(state.stored))
        self._gangs_end_at = answer.ends_at
        places, lacking = granted_places(answer), lacking_slots(answer)
        decided = list(granted.decisions(snapshot, running_on, asked, places, lacking))
        done = self._apply(decided, state.observation.now)
        if not done:
            self._status_cache.planned = Planned(snapshot)
            self._status_cache.set_waits((*queue_waits(asked, answer, queue), *self._quota_result.waits()))
        return done

    def _apply(self, decisions: Sequence[Decision], now: float) -> bool:
        """Carry out all decisions; return whether any of them changed anything."""
        changed = [self._leasing.apply(decision, now) for decision in decisions]
        return any(changed)

    def close(self) -> None:
        self._forecast.close()
        self._policy_manager.close()

    def _explain(self) -> None:
        starts = self._forecast.starts
        waits = explain(self._enforced.shown(), starts, self._delayed_until)
        self._status_cache.planned = Planned(self.snapshot, self._forecast.latest)
        self._status_cache.set_waits((*self._enforced.explained(waits, starts), *self._quota_result.waits()))

    @contextmanager
    def _blaming(self, state: ClusterState) -> Iterator[None]:
        """Raise JobsAtFault if some jobs are the cause of an exception."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            stored = state.stored
            jobs = at_fault(
                stored.jobs,
                _PLAIN,
                lambda some: self._raises(replace(state, stored=replace(stored, jobs=tuple(some)))),
            )
            if jobs:
                raise JobsAtFault(jobs) from error
            raise

    def _raises(self, state: ClusterState) -> bool:
        """Whether planning for this state raises; changes nothing. A custom policy is not called again."""
        policy_manager = self._policy_manager
        try:
            _, enforced = self._apply_quotas_and_reservations(self._snapshot(state))
            for _ in decisions_before_policy(enforced, policy_manager.placement):
                pass
            if not isinstance(policy_manager.policy, CustomPolicy):
                policy_manager.schedule(enforced.snapshot, enforced.excluded)
            explain(enforced.shown(), {}, {})
        except Exception:
            return True
        return False

    def _apply_quotas_and_reservations(self, snapshot: Snapshot) -> tuple[QuotaResult, Enforcement]:
        result = self._accounting.apply_quotas(snapshot)
        return result, enforce(result.snapshot, self.reservations.current(), self.reservations.groups_of)

    def _undecided(self, snapshot: Snapshot) -> bool:
        """Whether there is anything to plan for."""
        return bool(
            snapshot.waiting
            or snapshot.growing
            or (snapshot.running and self._policy_manager.policy.preemptive)
        )

    def _decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        """Return what to do. Raises PlanFailed."""
        self.again_at = min(self._moments(), default=None)
        if self._policy_manager.loaded and not self._undecided(snapshot):
            self._policy_manager.drop_answer()
            return ()
        if not self._policy_manager.ready_for(snapshot):
            return ()
        schedules = self._schedules(replace(snapshot, delayed_since=self._delayed_since))
        self.again_at = min(self._moments(*(one.again_at for one in schedules)), default=None)
        found = [one.assignment for one in schedules]
        self._delayed_since = dict(ChainMap(*(one.delayed_since for one in found)))
        self._delayed_until = dict(ChainMap(*(one.delayed_until for one in found)))
        return tuple(decision for one in schedules for decision in one.decisions)

    def _schedules(self, snapshot: Snapshot) -> list[Schedule]:
        """Return the policy's schedule. If it is empty, add one for the time until the next reservations.

        A custom policy answers one call at a time: it is called only for the first schedule.
        """
        policy_manager, enforced = self._policy_manager, self._enforced
        is_custom = isinstance(policy_manager.policy, CustomPolicy)
        schedule = policy_manager.schedule(snapshot, enforced.excluded)
        if schedule.decisions or is_custom:
            return [schedule]
        left = until_next_reservation(enforced, schedule.assignment, elastic=policy_manager.policy.elastic)
        if left is None:
            return [schedule]
        return [
            schedule,
            policy_manager.schedule(replace(left, delayed_since=snapshot.delayed_since), enforced.excluded),
        ]

    def _moments(self, *more: float | None) -> list[float]:
        moments = (self._quota_result.again_at, self._enforced.again_at, *more)
        return [moment for moment in moments if moment is not None]

    def excluded_from(self, owner: str, ends_at: float) -> tuple[frozenset[tuple[str, int]], str]:
        """Return the reserved slots that a notebook server may not hold until `ends_at`, and the reason."""
        return self._enforced.exclusions.excluded_from(owner, ends_at, self.reservations.groups_of)

    def prepare(self, owner: str, image: str | None, now: float) -> Places:
        """Start a gang for an owner's first cell, on slots that nobody needs; return its places, if any."""
        snapshot, until = self.snapshot, now + self._limits.prepared_s
        reserved, _ = self.excluded_from(owner, until)
        places = prepared_places(snapshot, owner, reserved) if until > now else ()
        if not places:
            return ()
        try:
            gang_id = self._store.prepare(owner, image, places, now)
        except SlotTaken:
            return ()
        self._log.info(
            "gang %s: prepared for %s on %s", gang_id, owner, ", ".join(node for node, _ in places)
        )
        self._status_cache.notify()
        return places

    async def start_if_submitted(self, spec: JobSpec, owner: str, now: float) -> tuple[Wait, float | None]:
        """Return why and until when a job would wait that is not submitted, and its latest start."""
        record = replace(_PLAIN, id=MOST_ID, owner=owner, spec=spec, created_at=now, state_since=now)
        jobs = (*self._whole.jobs, waiting_view(record))
        result, enforced = self._apply_quotas_and_reservations(replace(self._whole, jobs=jobs, now=now))
        if (queue := self._engine.batch_queue) is not None:
            held = (wait for wait in result.waits() if wait.job_id == MOST_ID)
            return next(held, unsubmitted_wait(MOST_ID, queue)), None
        starts, latest = await self._forecast.once(enforced)
        waits = (*enforced.explained(explain(enforced.shown(), starts), starts), *result.waits())
        return next(wait for wait in waits if wait.job_id == MOST_ID), latest.get(MOST_ID)

    def pause_growth(self, job_id: int, *, refused: bool = False) -> None:
        """Give a job no more nodes for a while."""
        self._no_growth[job_id] = self._clock() + (REFUSED_GROWTH_PAUSE_S if refused else GROWTH_PAUSE_S)

    def _snapshot(self, state: ClusterState) -> Snapshot:
        stored, observation = state.stored, state.observation
        now = self._clock()
        silent = silent_nodes(stored, observation, self._limits, self._ending_s(stored, now))
        self.settling = _settling(stored, observation.now - self._engine.settle_s) if silent else frozenset()
        self._no_growth = {job_id: until for job_id, until in self._no_growth.items() if until > now}
        lost = {gang_state.gang.id for gang_state in state.gang_states if gang_state.lost}
        facts = SchedulerFacts(
            lost,
            silent,
            self._no_growth,
            self.settling,
            self._limits.min_run_s,
            self._accounting.usage(observation.now),
            self._accounting.consumed,
            self._status_cache.progress_rates.known,
        )
        return snapshot_of(stored, self._engine.nodes(), observation.now, facts)

    def _ending_s(self, stored: StoredState, now: float) -> dict[int, float]:
        """Return, by gang, for how many seconds this service has seen it ending."""
        ending = [gang.id for gang in stored.gangs if gang.target is GangTarget.END]
        self._ending_since = {gang_id: self._ending_since.get(gang_id, now) for gang_id in ending}
        return {gang_id: now - since for gang_id, since in self._ending_since.items()}


def _settling(stored: StoredState, since: float) -> frozenset[int]:
    """Return the queued jobs that lost a node after that moment."""
    lost = (job for job in stored.jobs if job.state is JobState.QUEUED and job.gang_id is not None)
    return frozenset(job.id for job in lost if job.state_since > since)


# Which jobs make planning fail: found by leaving jobs out, the newest first. Pure.


def at_fault(jobs: Sequence[_Job], plain: _Job, raises: _Raises[_Job]) -> tuple[_Job, ...]:
    """Return the jobs without which `raises` is false; none if the jobs are not the cause.

    plain: a job that causes no failure.
    """
    found: list[_Job] = []
    if raises([plain]):
        return ()
    left = list(jobs)
    while raises(left):
        if not left or len(found) == MOST:
            return ()
        found.append(left.pop(_last_of_shortest(left, raises)))
    return tuple(found)


def _last_of_shortest(jobs: Sequence[_Job], raises: _Raises[_Job]) -> int:
    """Return the index of the last job in the shortest prefix of `jobs` that raises."""
    low, high = 1, len(jobs)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if raises(jobs[:middle]) else (middle + 1, high)
    return low - 1
