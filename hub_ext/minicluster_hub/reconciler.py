"""The one loop that acts: reads the world, asks the pure parts what must happen, saves, then does it.

It sleeps until something wakes it (a handler that stored something, an engine that saw something)
or the next deadline of the world is due. Killed at any moment, it goes on from the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from minicluster.wire import ErrorKind, JobError
from minicluster_hub.actions import (
    Action,
    DropTasks,
    EndGang,
    EndStray,
    EndTask,
    Happened,
    MarkEnded,
    MarkStarted,
    StartTask,
)
from minicluster_hub.attention import LOOK_S, Attention
from minicluster_hub.board import Board
from minicluster_hub.deadlines import next_deadline
from minicluster_hub.engines.base import Engine, EngineError, TaskLaunch
from minicluster_hub.lifecycle import decide
from minicluster_hub.models import JobRecord, TaskRecord, World
from minicluster_hub.planner import Planner
from minicluster_hub.scenes import Limits, Sight, scenes
from minicluster_hub.scheduling.base import Placement, Policy
from minicluster_hub.states import JobEvent
from minicluster_hub.store import Store

RETRY_S = 1.0
IDLE_LOOK_S = 5.0


class Reconciler:
    """See the module. All methods are called from the service's event loop."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        policy: Policy,
        placement: Placement,
        service_url: str,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
        log: logging.Logger | None = None,
    ) -> None:
        self.board = Board(store, engine)
        self._store = store
        self._engine = engine
        self._service_url = service_url
        self._limits = limits or Limits()
        self._clock = clock
        self._log = log or logging.getLogger(__name__)
        self._awake = asyncio.Event()
        self._attention = Attention()
        self._planner = Planner(store, engine, self.board, policy, placement, self._limits, self._log)
        self._engine_work: dict[int, asyncio.Task[None]] = {}

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
            try:
                wait_s = self._tick()
            except Exception:
                self._log.exception("the reconciler could not act; trying again in %s s", RETRY_S)
                wait_s = RETRY_S

    async def _listen(self) -> None:
        """Note that the loop turns, while there are agents to hear."""
        while True:
            await asyncio.sleep(LOOK_S if self.board.world.tasks else IDLE_LOOK_S)
            self._attention.note()

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

    def slots_changed(self) -> None:
        """Say that a notebook server took or gave back slots: everyone sees it from now on."""
        self._look()
        self.board.ring()
        self.wake()

    def heartbeat(self, task_id: int) -> None:
        """Say that a task's agent has spoken."""
        self._attention.hear(task_id)

    async def close(self) -> None:
        """End what is under way in the engine; the tasks go on."""
        for work in self._engine_work.values():
            work.cancel()
        await asyncio.gather(*self._engine_work.values(), return_exceptions=True)
        await self._engine.close()

    async def _sleep(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._awake.wait()
        except TimeoutError:
            pass
        self._awake.clear()

    def _engine_changed(self) -> None:
        self.board.ring()
        self.wake()

    def _tick(self) -> float | None:
        """Act until nothing is left to do now; return in how many seconds to look again."""
        while True:
            self._look()
            world, sight = self.board.world, self._sight(self.board.world)
            actions = [action for action in decide(world, sight, self._limits) if self._is_new(action)]
            for action in actions:
                self._carry_out(action)
            if not actions and not self._planner.plan(world, sight):
                break
        self.board.ring_orders()
        return next_deadline(world, sight, self._limits)

    def _look(self) -> None:
        world = self._store.world()
        self.board.show(world, scenes(world, self._sight(world), self._limits))

    def _sight(self, world: World) -> Sight:
        views = self._engine.tasks()
        for task_id, view in views.items():
            if view.starting:
                self._attention.hear(task_id)
        return Sight(views, self._attention.silence_s(task.id for task in world.tasks), self._clock())

    def _is_new(self, action: Action) -> bool:
        if isinstance(action, EndStray):
            return action.task_id not in self._engine_work
        touches_engine = isinstance(action, StartTask | EndTask | MarkEnded)
        return not (touches_engine and action.task.id in self._engine_work)

    # --- carrying out -------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartTask(task):
                self._start(task)
            case MarkStarted(task):
                self.heartbeat(task.id)
                self._store.task_started(task.id, self._clock())
            case EndTask(task):
                self._with_engine(task.id, self._engine.end(task.id))
            case MarkEnded(task):
                self._store.task_ended(task.id, self._clock())
                self._engine.forget(task.id)
                self.board.ring()
            case EndStray(task_id):
                self._log.warning("task %s is in no row: ending it", task_id)
                self._with_engine(task_id, self._end_stray(task_id))
            case EndGang(gang_id, reason):
                self._log.info("ending gang %s%s", gang_id, f": {reason}" if reason else "")
                self._store.end_gang(gang_id)
            case DropTasks(gang_id, task_ids, reason):
                self._drop(gang_id, task_ids, reason)
            case Happened(job_id, event, reason, error, losses):
                self.happened(job_id, event, reason, error, losses)

    def _drop(self, gang_id: int, task_ids: tuple[int, ...], reason: str) -> None:
        scene = self.board.scenes[gang_id]
        nodes = ", ".join(task.node for task in scene.tasks if task.id in task_ids)
        self._log.info("gang %s goes on without %s%s", gang_id, nodes, f": {reason}" if reason else "")
        self._store.drop_tasks(gang_id, task_ids, self._clock())
        if scene.job is not None and scene.tolerates_loss:
            self._planner.pause_growth(scene.job.id)
            self._store.note(scene.job.id, "shrunk", f"{nodes} is lost; the others go on", self._clock())
            self.board.ring(scene.job.id)

    def happened(
        self,
        job_id: int,
        event: JobEvent,
        reason: str = "",
        error: JobError | None = None,
        losses: int | None = None,
    ) -> JobRecord:
        """Apply an event to a job and tell everyone who looks at it."""
        record = self._store.apply(job_id, event, self._clock(), reason=reason, error=error, losses=losses)
        self._log.info("job %s: %s -> %s %s", job_id, event, record.state, reason)
        self.board.ring(job_id)
        self.wake()
        return record

    def _start(self, task: TaskRecord) -> None:
        """Keep the token's hash first, then start: a kill between the two only makes a new token."""
        scene = self.board.scenes[task.gang_id]
        token = secrets.token_urlsafe(32)
        self._store.arm_task(task.id, hashlib.sha256(token.encode()).hexdigest())
        launch = TaskLaunch(
            task.id,
            task.gang_id,
            scene.gang.owner,
            task.node,
            task.slots,
            token,
            self._service_url,
            job_id=scene.job.id if scene.job else None,
            attempt_id=scene.job.attempt_id if scene.job else None,
            image=scene.gang.image,
            shm_bytes=scene.gang.shm_bytes,
        )
        self._with_engine(task.id, self._start_task(launch, scene.job))

    async def _start_task(self, launch: TaskLaunch, job: JobRecord | None) -> None:
        try:
            await self._engine.start(launch)
        except EngineError as error:
            self._log.warning("task %s was not started on %s: %s", launch.task_id, launch.node, error)
            self._store.end_gang(launch.gang_id)
            if job is not None:
                failure = JobError(kind=ErrorKind.START, node=launch.node, message=str(error))
                self.happened(job.id, JobEvent.FAILURE_SEEN, str(error), failure)

    async def _end_stray(self, task_id: int) -> None:
        await self._engine.end(task_id)
        self._engine.forget(task_id)

    def _with_engine(self, task_id: int, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._engine_work[task_id] = task
        task.add_done_callback(lambda done: self._engine_done(task_id, done))

    def _engine_done(self, task_id: int, done: asyncio.Task[None]) -> None:
        self._engine_work.pop(task_id, None)
        if not done.cancelled() and done.exception() is not None:
            error = done.exception()
            unexpected = None if isinstance(error, EngineError) else error
            self._log.error("the engine failed with task %s: %s", task_id, error, exc_info=unexpected)
            asyncio.get_running_loop().call_later(RETRY_S, self.wake)
            return
        self.wake()
