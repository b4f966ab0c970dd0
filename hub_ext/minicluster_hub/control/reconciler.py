"""The control loop: observes the cluster, lets the pure parts decide, saves, then acts.

It sleeps until something wakes it (a handler that stored something, an engine that saw something)
or the next deadline is due. It may be killed at any moment: it goes on from what is stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from minicluster.wire import JobState, PolicyChoice
from minicluster_hub.control.executor import RETRY_S, Executor
from minicluster_hub.control.liveness import LOOK_S, Liveness
from minicluster_hub.control.operations import (
    Operation,
    Verb,
    all_keys,
    job_of,
    key_of,
    operation_of,
)
from minicluster_hub.control.planner import JobsAtFault, Planner
from minicluster_hub.control.quarantine import OperationFailure, Quarantine
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.engines.base import Engine, EngineError
from minicluster_hub.jobs.actions import Action, MarkStarted
from minicluster_hub.jobs.gang_state import ClusterState, LifecycleLimits, Observation
from minicluster_hub.jobs.lifecycle import decide, next_deadline
from minicluster_hub.jobs.records import StoredState, TaskView
from minicluster_hub.jobs.slot_numbers import is_half, slot_of
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.policy.active_policy import PolicyManager
from minicluster_hub.store import NotLeading, Store
from minicluster_hub.usage.accounting import UsageAccounting

IDLE_LOOK_S = 5.0
SOON_S = 0.25
LONGEST_REST_S = 0.2
"""After a tick the loop rests as long as it took, but no longer."""


class Reconciler:
    """All methods are called in the service's event loop. wiring.make_reconciler builds one with its parts.

    awake: set by code that stored something, so that the loop acts at once.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        service_urls: tuple[str, ...],
        limits: LifecycleLimits,
        clock: Callable[[], float],
        log: logging.Logger,
        awake: asyncio.Event,
        quarantine: Quarantine,
        status_cache: StatusCache,
        liveness: Liveness,
        accounting: UsageAccounting,
        policy_manager: PolicyManager,
        planner: Planner,
        executor: Executor,
    ) -> None:
        self.quarantine = quarantine
        self.status_cache = status_cache
        self.accounting = accounting
        self.policy_manager = policy_manager
        self.reservations, self.excluded_from = planner.reservations, planner.excluded_from
        self.start_if_submitted = planner.start_if_submitted
        self.apply_event = executor.apply_event
        self.prepare = planner.prepare
        self._store = store
        self._engine = engine
        self._service_urls = service_urls
        self._limits = limits
        self._clock = clock
        self._log = log
        self._awake = awake
        self._liveness = liveness
        self._planner = planner
        self._executor = executor

    # --- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Open the engine and act until cancelled. The tasks then stay as they are."""
        self._engine.on_change = self._engine_changed
        self.policy_manager.changed = self.wake
        await self._open()
        listening = asyncio.create_task(self._listen())
        try:
            await self._act()
        finally:
            listening.cancel()

    async def _act(self) -> None:
        wait_s: float | None = 0.0
        while True:
            await self._sleep(wait_s)
            began = time.monotonic()
            try:
                wait_s = self._tick()
            except NotLeading:
                raise
            except Exception:
                self._log.exception("the reconciler could not act; trying again in %s s", RETRY_S)
                wait_s = RETRY_S
            # However often the loop is woken, half of the time remains for everything else.
            await asyncio.sleep(min(LONGEST_REST_S, time.monotonic() - began))

    async def _listen(self) -> None:
        """Note regularly that the event loop runs, more often while there are agents."""
        while True:
            await asyncio.sleep(LOOK_S if self.status_cache.stored.tasks else IDLE_LOOK_S)
            self._liveness.record_service_alive()

    async def _open(self) -> None:
        """Open the engine; retry while Docker, say, does not answer. Meanwhile `doctor` reports no answer."""
        while True:
            try:
                return await self._engine.open()
            except EngineError as error:
                self._log.error("the engine cannot start; trying again in %s s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)

    async def _sleep(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._awake.wait()
        except TimeoutError:
            pass
        self._awake.clear()

    async def close(self) -> None:
        """Cancel the engine's calls that are under way. The tasks keep running."""
        self._planner.close()
        await self._executor.close()
        await self._engine.close()

    # --- called by handlers -------------------------------------------------------------------

    def wake(self) -> None:
        """Make the loop act at once: something was stored."""
        self._awake.set()

    def wake_soon(self) -> None:
        """Make the loop act in a moment: what was stored decides nothing yet, but is to be seen."""
        asyncio.get_running_loop().call_later(SOON_S, self.wake)

    async def choose_policy(self, choice: PolicyChoice, by: str) -> None:
        """Activate a policy from the next tick on. Raises ChoiceRefused, with nothing changed."""
        await self.policy_manager.choose(choice, by, self._planner.snapshot)
        self.wake()

    def slots_changed(self) -> None:
        """Observe and notify, since a notebook server took or returned slots."""
        self._observe()
        self.status_cache.notify()
        self.wake()

    def heartbeat(self, task_id: int, unreached: tuple[str, ...] = ()) -> None:
        """Record a report of a task's agent, and which addresses of its attempt the agent cannot reach."""
        if self._liveness.record_heartbeat(task_id, unreached):
            self.wake()

    def reset_silence(self) -> None:
        """Start counting silence anew: the database could not tell which agents reported."""
        self._liveness.reset_silence()

    def _engine_changed(self) -> None:
        self.status_cache.notify()
        self.wake()

    # --- a tick: observe, decide, act -----------------------------------------------------------

    def _tick(self) -> float | None:
        """Act until nothing is left to do now; return after how many seconds to act again.

        None: only when woken.
        """
        state = self._observe()
        while self._act_on(state):
            state = self._observe()
        self.status_cache.notify_orders()
        data_set_tracker = self.status_cache.data_set_tracker
        if agents := self._engine.data_agents:
            agents.ensure_running(self._service_urls, data_set_tracker.tokens, needed=data_set_tracker.busy)
        if sharing := self._engine.gpu_sharing:
            halves = (lease for lease in state.stored.leases if is_half(lease.slot))
            sharing.keep({(lease.node, slot_of(lease.slot)) for lease in halves})
        if grants := self._engine.node_grants:
            waiting = {job.job_id for job in self._planner.snapshot.waiting}
            grants.request([job for job in state.stored.jobs if job.id in waiting])
        replan_at = self._planner.again_at
        waits_s = (
            next_deadline(state, self._limits, self.quarantine.isolate_gang),
            self.quarantine.next_in_s(),
            RETRY_S if self._planner.settling else None,
            None if replan_at is None else max(0.0, replan_at - state.observation.now),
        )
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    def _observe(self) -> ClusterState:
        """Read the store and the engine, once for all parts of a tick, and update the status cache."""
        stored, views = self._store.open_state(), self._engine.tasks()
        nodes = self._engine.nodes()
        self._record_liveness(stored, views)
        observation = Observation(
            views,
            self._liveness.silence_s(task.id for task in stored.tasks),
            self._clock(),
            self._engine.lighthouses.views() if self._engine.lighthouses else {},
            self.status_cache.data_set_tracker.views(stored),
            self._liveness.unreached,
            frozenset(node.name for node in nodes if not node.up),
        )
        self.accounting.note(stored, nodes, observation.now)
        self.quarantine.begin_tick(lambda: all_keys(stored, views, observation.lighthouses))
        state = ClusterState.of(stored, observation, self._limits, self.quarantine.isolate_gang)
        self.status_cache.update(state)
        return state

    def _record_liveness(self, stored: StoredState, views: Mapping[int, TaskView]) -> None:
        """Record that the service is alive. An agent whose node still pulls an image is not silent."""
        self._liveness.record_service_alive()
        self._liveness.keep_only({task.id for task in stored.tasks})
        for task_id, view in views.items():
            if view.starting:
                self._liveness.record_heartbeat(task_id, self._liveness.unreached.get(task_id, ()))

    def _act_on(self, state: ClusterState) -> bool:
        """Give up hopeless jobs. If there are none, do what is decided; if that is nothing, plan.

        Return whether to observe again.
        """
        if self._give_up_hopeless(state.stored):
            return True
        actions = [
            one for one in decide(state, self._limits, self.quarantine.isolate_gang) if self._is_new(one)
        ]
        for action in actions:
            operation = operation_of(action)
            done = operation.doing not in (Verb.START, Verb.END)
            with self.quarantine.isolate(operation, job_of(operation, state.stored), done=done):
                self._executor.carry_out(action)
        return bool(actions) or self._plan(state)

    def _is_new(self, action: Action) -> bool:
        """Whether the action is not under way and did not fail a moment ago."""
        busy = not isinstance(action, MarkStarted) and self._executor.is_busy(key_of(action))
        return not busy and not self.quarantine.waits(operation_of(action))

    def _plan(self, state: ClusterState) -> bool:
        """Plan for all jobs except those that just made planning fail; return whether to observe again."""
        left_out = self.quarantine.waiting_jobs(Verb.PLACE)
        if left_out:
            jobs = tuple(job for job in state.stored.jobs if job.id not in left_out)
            state = replace(state, stored=replace(state.stored, jobs=jobs))
        try:
            done = self._planner.plan(state)
            self.quarantine.all_worked(Verb.PLACE)
            return done
        except JobsAtFault as fault:
            for job in fault.jobs:
                # A job that has slots goes on with them. Only a waiting job can be hopeless.
                waits = job.state is JobState.QUEUED
                self.quarantine.failed(
                    Operation(Verb.PLACE, "job", job.id), job.id if waits else None, fault.__cause__ or fault
                )
            return True

    def _give_up_hopeless(self, stored: StoredState) -> bool:
        """End the jobs for which the service itself fails repeatedly; return whether any was ended."""
        open_jobs = {job.id for job in stored.jobs}
        hopeless = {one.job_id: one for one in self.quarantine.hopeless() if one.job_id in open_jobs}
        ended = [self._give_up(job_id, failure) for job_id, failure in hopeless.items() if job_id]
        return any(ended)

    def _give_up(self, job_id: int, failure: OperationFailure) -> bool:
        operation = Operation(Verb.END, "job", job_id)
        if self.quarantine.waits(operation):
            return False
        with self.quarantine.isolate(operation):
            error = failure.job_error()
            self.apply_event(job_id, JobEvent.GIVEN_UP, error.message, error)
            return True
        return False
