"""The one loop that acts: reads the world, asks the pure parts what must happen, saves, then does it.

It sleeps until something wakes it (a handler that stored something, an engine that saw something)
or the next deadline of the world is due. Killed at any moment, it goes on from the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from minicluster.wire import JobState, PolicyChoice
from minicluster_hub.control.engine_actions import RETRY_S, EngineWork
from minicluster_hub.control.executor import Executor
from minicluster_hub.control.liveness import LOOK_S, Liveness
from minicluster_hub.control.planner import JobsAtFault, Planner
from minicluster_hub.control.quarantine import Failure, Quarantine
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.control.steps import ENDING, PLACING, STARTING, Step, all_keys, key_of, step_of
from minicluster_hub.datasets.node_tracker import DataSetTracker
from minicluster_hub.engines.base import Engine, EngineError
from minicluster_hub.jobs.actions import Action, MarkStarted
from minicluster_hub.jobs.gang_state import ClusterState, Limits, Observation
from minicluster_hub.jobs.lifecycle import decide, next_deadline
from minicluster_hub.jobs.records import GangRecord, World
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.policy.active_policy import BUILT_IN, PolicyManager
from minicluster_hub.store import NotLeading, Store
from minicluster_hub.usage.accounting import WEEK_S, UsageAccounting

IDLE_LOOK_S = 5.0
LONGEST_REST_S = 0.2
"""After a tick the loop rests as long as it took, but no longer."""


class Reconciler:
    """See the module. All methods are called from the service's event loop."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        service_url: str,
        policy_manager: PolicyManager | None = None,
        accounting: UsageAccounting | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        log: logging.Logger | None = None,
        data_set_tracker: DataSetTracker | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._log = log or logging.getLogger(__name__)
        self.quarantine = Quarantine(store, self._limits.retry_s, monotonic, self._log)
        self.status_cache = StatusCache(store, engine, self._limits, data_set_tracker, self._isolate)
        self._service_url = service_url
        self._store = store
        self._engine = engine
        self._clock = clock
        self.accounting = accounting or UsageAccounting(store, WEEK_S, {})
        self.policy_manager = policy_manager or PolicyManager(store, BUILT_IN, clock, self._log)
        self.policy_manager.changed = self.wake
        self._awake = asyncio.Event()
        self._liveness = Liveness(monotonic)
        self._planner = Planner(
            store,
            engine,
            self.status_cache,
            self.policy_manager,
            self.accounting,
            self._limits,
            self._log,
            self.quarantine,
            monotonic,
        )
        self.reservations, self.kept_from = self._planner.reservations, self._planner.kept_from
        self._unreached: dict[int, tuple[str, ...]] = {}
        self._work = EngineWork(store, engine, service_url, self.wake, self._worked, self._log)
        self._executor = Executor(store, engine, self.status_cache, self._work, self, clock, self._log)
        self.happened, self.pause_growth = self._executor.happened, self._planner.pause_growth

    # --- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Open the engine and act until cancelled; tasks stay as they are then."""
        self._engine.on_change = self._engine_changed
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
            # Whoever wakes it all the time, the loop has half of its time for everybody else.
            await asyncio.sleep(min(LONGEST_REST_S, time.monotonic() - began))

    async def _listen(self) -> None:
        """Note that the loop turns, while there are agents to hear."""
        while True:
            await asyncio.sleep(LOOK_S if self.status_cache.world.tasks else IDLE_LOOK_S)
            self._liveness.note()

    async def _open(self) -> None:
        """Open the engine, however long what it stands on is away; `doctor` shows that nobody answers."""
        while True:
            try:
                return await self._engine.open()
            except EngineError as error:
                self._log.error("the engine cannot start; trying again in %s s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)

    def wake(self) -> None:
        """Say that something was stored: the loop looks at once."""
        self._awake.set()

    async def choose_policy(self, choice: PolicyChoice, by: str) -> None:
        """Put a policy in force, from the next tick on. Raises ChoiceRefused, with nothing changed."""
        await self.policy_manager.choose(choice, by, self._planner.snapshot)
        self.wake()

    def slots_changed(self) -> None:
        """Say that a notebook server took or gave back slots: everyone sees it from now on."""
        self._look()
        self.status_cache.notify()
        self.wake()

    def heartbeat(self, task_id: int, unreached: tuple[str, ...] = ()) -> None:
        """Say that a task's agent has spoken, and which others of its attempt it does not reach."""
        self._liveness.hear(task_id)
        if self._unreached.get(task_id, ()) != unreached:
            self._unreached[task_id] = unreached
            self.wake()

    def missed(self) -> None:
        """Say that agents may have spoken, and the database was away to tell who they are."""
        self._liveness.miss()

    async def close(self) -> None:
        """End what is under way in the engine; the tasks go on."""
        self._planner.close()
        await self._work.close()
        await self._engine.close()

    async def _sleep(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._awake.wait()
        except TimeoutError:
            pass
        self._awake.clear()

    def _engine_changed(self) -> None:
        self.status_cache.notify()
        self.wake()

    def _tick(self) -> float | None:
        """Act until nothing is left to do now; return in how many seconds to look again."""
        while True:
            state = self._look()
            if self._give_up_hopeless(state.world):
                continue
            decided = decide(state, self._limits, self._isolate)
            actions = [action for action in decided if self._is_new(action)]
            for action in actions:
                step = step_of(action)
                done = step.doing not in (STARTING, ENDING)
                with self.quarantine.isolate(step, self._job_of(step), done=done):
                    self._executor.carry_out(action)
            if not actions and not self._plan(state):
                break
        self.status_cache.notify_orders()
        data_set_tracker = self.status_cache.data_set_tracker
        if agents := self._engine.data_agents:
            agents.tend(self._service_url, data_set_tracker.tokens, wanted=data_set_tracker.busy)
        if grants := self._engine.node_grants:
            waiting = {job.job_id for job in self._planner.snapshot.waiting}
            grants.request([job for job in state.world.jobs if job.id in waiting])
        replan_at = self._planner.again_at
        waits_s = (
            next_deadline(state, self._limits, self._isolate),
            self.quarantine.next_in_s(),
            RETRY_S if self._planner.settling else None,
            None if replan_at is None else max(0.0, replan_at - state.observation.now),
        )
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    def _plan(self, state: ClusterState) -> bool:
        """Plan for all jobs but those that a moment ago made planning fail; return whether to look again."""
        left_out = self.quarantine.waiting_jobs(PLACING)
        if left_out:
            jobs = tuple(job for job in state.world.jobs if job.id not in left_out)
            state = replace(state, world=replace(state.world, jobs=jobs))
        try:
            done = self._planner.plan(state)
            self.quarantine.all_worked(PLACING)
            return done
        except JobsAtFault as fault:
            for job in fault.jobs:
                # One that has its slots goes on with them: only who waits can be hopeless.
                waits = job.state is JobState.QUEUED
                self.quarantine.failed(
                    Step(PLACING, "job", job.id), job.id if waits else None, fault.__cause__ or fault
                )
            return True

    def _look(self) -> ClusterState:
        """Observe the cluster, and show it to those who watch."""
        world = self._store.world()
        self.accounting.note(world, self._engine.nodes(), self._clock())
        observation = self._observe(world)
        self.quarantine.look(lambda: all_keys(world, observation.views, observation.lighthouses))
        state = ClusterState.of(world, observation, self._limits, self._isolate)
        self.status_cache.show(state)
        return state

    def _observe(self, world: World) -> Observation:
        views = self._engine.tasks()
        for task_id, view in views.items():
            if view.starting:
                self._liveness.hear(task_id)
        silence_s = self._liveness.silence_s(task.id for task in world.tasks)
        data = self.status_cache.data_set_tracker.views(world)
        self._unreached = {task.id: self._unreached.get(task.id, ()) for task in world.tasks}
        down = frozenset(node.name for node in self._engine.nodes() if not node.up)
        lighthouses = self._engine.lighthouses.views() if self._engine.lighthouses else {}
        return Observation(views, silence_s, self._clock(), lighthouses, data, self._unreached, down)

    def _is_new(self, action: Action) -> bool:
        """Whether it is not under way, and did not fail a moment ago."""
        busy = not isinstance(action, MarkStarted) and self._work.is_busy(key_of(action))
        return not busy and not self.quarantine.waits(step_of(action))

    # --- what fails for one job -----------------------------------------------------------------

    def _isolate(self, doing: str, gang: GangRecord) -> AbstractContextManager[None]:
        return self.quarantine.isolate(Step(doing, "gang", gang.id), gang.job_id)

    def _worked(self, step: Step, error: BaseException | None) -> None:
        """Note how what was under way in the engine went."""
        if error is None:
            self.quarantine.worked(step)
        else:
            self.quarantine.failed(step, self._job_of(step), error)

    def _job_of(self, step: Step) -> int | None:
        """Return the job that a step is for, None for a warm gang, a stray task, one that is over."""
        gang_id = step.id
        if step.kind == "job":
            return step.id
        if step.kind == "task":
            gang_id = next((task.gang_id for task in self.status_cache.world.tasks if task.id == step.id), 0)
        return next((gang.job_id for gang in self.status_cache.world.gangs if gang.id == gang_id), None)

    def _give_up_hopeless(self, world: World) -> bool:
        """End the jobs with which nothing works; return whether any was ended."""
        open_jobs = {job.id for job in world.jobs}
        hopeless = {one.job_id: one for one in self.quarantine.hopeless() if one.job_id in open_jobs}
        ended = [self._give_up(job_id, failure) for job_id, failure in hopeless.items() if job_id]
        return any(ended)

    def _give_up(self, job_id: int, failure: Failure) -> bool:
        step = Step(ENDING, "job", job_id)
        if self.quarantine.waits(step):
            return False
        with self.quarantine.isolate(step):
            error = failure.told()
            self.happened(job_id, JobEvent.GIVEN_UP, error.message, error)
            return True
        return False
