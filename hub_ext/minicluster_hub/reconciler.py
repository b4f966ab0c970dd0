"""The one loop that acts: reads the world, asks the pure parts what must happen, saves, then does it.

It sleeps until something wakes it (a handler that stored something, an engine that saw something)
or the next deadline of the world is due. Killed at any moment, it goes on from the store.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from minicluster.wire import ErrorKind, JobError, PolicyChoice
from minicluster_hub.accounts import WEEK_S, Accounts
from minicluster_hub.actions import (
    Action,
    DataReady,
    DropTasks,
    EndGang,
    EndLighthouse,
    EndStray,
    EndTask,
    Happened,
    MarkEnded,
    MarkStarted,
    StartLighthouse,
    StartTask,
)
from minicluster_hub.attention import LOOK_S, Attention
from minicluster_hub.board import Board
from minicluster_hub.deadlines import next_deadline
from minicluster_hub.engine_work import RETRY_S, EngineWork, lighthouse_key, task_key
from minicluster_hub.engines.base import Engine, EngineError
from minicluster_hub.keepers import Keepers
from minicluster_hub.lifecycle import decide
from minicluster_hub.models import JobRecord, World
from minicluster_hub.planner import Planner
from minicluster_hub.rules.in_force import BUILT_IN, Rules
from minicluster_hub.scenes import Limits, Scene, Sight, scenes
from minicluster_hub.states import JobEvent
from minicluster_hub.store import NotLeading, Store

IDLE_LOOK_S = 5.0


class Reconciler:
    """See the module. All methods are called from the service's event loop."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        service_url: str,
        rules: Rules | None = None,
        accounts: Accounts | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        log: logging.Logger | None = None,
        keepers: Keepers | None = None,
    ) -> None:
        self.board = Board(store, engine, limits or Limits(), keepers)
        self._service_url = service_url
        self._store = store
        self._engine = engine
        self._limits = limits or Limits()
        self._clock = clock
        self._log = log or logging.getLogger(__name__)
        self.accounts = accounts or Accounts(store, WEEK_S, {})
        self.rules = rules or Rules(store, BUILT_IN, clock, self._log)
        self._awake = asyncio.Event()
        self._attention = Attention(monotonic)
        self._planner = Planner(
            store, engine, self.board, self.rules, self.accounts, self._limits, self._log, monotonic
        )
        self.bookings, self.kept_from = self._planner.bookings, self._planner.kept_from
        self._unreached: dict[int, tuple[str, ...]] = {}
        self._work = EngineWork(store, engine, service_url, self.wake, self._log)

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
                wait_s = await self._tick()
            except NotLeading:
                raise
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

    async def choose_policy(self, choice: PolicyChoice, by: str) -> None:
        """Put a policy in force, from the next tick on. Raises ChoiceRefused, with nothing changed."""
        await self.rules.choose(choice, by, self._planner.snapshot)
        self.wake()

    def slots_changed(self) -> None:
        """Say that a notebook server took or gave back slots: everyone sees it from now on."""
        self._look()
        self.board.ring()
        self.wake()

    def heartbeat(self, task_id: int, unreached: tuple[str, ...] = ()) -> None:
        """Say that a task's agent has spoken, and which others of its attempt it does not reach."""
        self._attention.hear(task_id)
        if self._unreached.get(task_id, ()) != unreached:
            self._unreached[task_id] = unreached
            self.wake()

    def missed(self) -> None:
        """Say that agents may have spoken, and the database was away to tell who they are."""
        self._attention.miss()

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
        self.board.ring()
        self.wake()

    async def _tick(self) -> float | None:
        """Act until nothing is left to do now; return in how many seconds to look again."""
        while True:
            self._look()
            world, sight = self.board.world, self._sight(self.board.world)
            actions = [action for action in decide(world, sight, self._limits) if self._is_new(action)]
            for action in actions:
                self._carry_out(action)
            if actions or await self._planner.ask(world, sight):
                continue
            if not self._planner.plan(world, sight):
                break
        self.board.ring_orders()
        if self.board.keepers.busy:
            self._engine.keep_data(self._service_url, self.board.keepers.token)
        replan_at = self._planner.again_at
        waits_s = (
            next_deadline(world, sight, self._limits),
            RETRY_S if self._planner.settling else None,
            None if replan_at is None else max(0.0, replan_at - sight.now),
        )
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    def _look(self) -> None:
        world = self._store.world()
        self.accounts.note(world, self._engine.nodes(), self._clock())
        self.board.show(world, scenes(world, self._sight(world), self._limits))

    def _sight(self, world: World) -> Sight:
        views = self._engine.tasks()
        for task_id, view in views.items():
            if view.starting:
                self._attention.hear(task_id)
        silence_s = self._attention.silence_s(task.id for task in world.tasks)
        data = self.board.keepers.views(world)
        self._unreached = {task.id: self._unreached.get(task.id, ()) for task in world.tasks}
        down = frozenset(node.name for node in self._engine.nodes() if not node.up)
        return Sight(views, silence_s, self._clock(), self._engine.lighthouses(), data, self._unreached, down)

    def _is_new(self, action: Action) -> bool:
        match action:
            case StartTask(task) | EndTask(task) | MarkEnded(task):
                return not self._work.is_busy(task_key(task.id))
            case EndStray(task_id):
                return not self._work.is_busy(task_key(task_id))
            case StartLighthouse(gang_id) | EndLighthouse(gang_id):
                return not self._work.is_busy(lighthouse_key(gang_id))
        return True

    # --- carrying out -------------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        match action:
            case MarkStarted(task):
                self.heartbeat(task.id)
                self._store.task_started(task.id, self._clock())
            case MarkEnded(task):
                self._store.task_ended(task.id, self._clock())
                self._engine.forget(task.id)
                self.board.ring()
            case EndGang(gang_id, reason):
                self._log.info("ending gang %s%s", gang_id, f": {reason}" if reason else "")
                self._store.end_gang(gang_id)
            case DropTasks(gang_id, task_ids, reason):
                self._drop(gang_id, task_ids, reason)
            case DataReady(job_id, attempt_id):
                self._store.datasets.ready_for(job_id, attempt_id)
            case Happened(job_id, event, reason, error, losses):
                self.happened(job_id, event, reason, error, losses)
            case _:
                self._begin(action)

    def _begin(self, action: Action) -> None:
        """Begin what the engine takes its time for."""
        match action:
            case StartTask(task):
                self._work.start_task(task, self.board.scenes[task.gang_id], self._task_refused)
            case EndTask(task):
                self._work.end_task(task.id)
            case EndStray(task_id):
                self._log.warning("task %s is in no row: ending it", task_id)
                self._work.end_stray(task_id)
            case StartLighthouse(gang_id):
                self._work.start_lighthouse(gang_id, self._lighthouse_refused)
            case EndLighthouse(gang_id):
                self._work.end_lighthouse(gang_id)

    def _drop(self, gang_id: int, task_ids: tuple[int, ...], reason: str) -> None:
        scene = self.board.scenes[gang_id]
        nodes = ", ".join(task.node for task in scene.tasks if task.id in task_ids)
        self._log.info("gang %s goes on without %s%s", gang_id, nodes, f": {reason}" if reason else "")
        self._store.drop_tasks(gang_id, task_ids, self._clock())
        if scene.job is not None and scene.tolerates_loss:
            self._planner.pause_growth(scene.job.id, refused=bool(reason))
            why = f"{nodes} {f'leaves: {reason}' if reason else 'is lost'}; the others go on"
            self._store.note(scene.job.id, "shrunk", why, self._clock())
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

    def _task_refused(self, task_id: int, error: EngineError) -> None:
        """Fail the job whose task cannot start; one that was only to join a running attempt is dropped."""
        task = next((task for task in self.board.world.tasks if task.id == task_id), None)
        scene = self.board.scenes.get(task.gang_id) if task else None
        if task is None or scene is None:
            return
        self._log.warning("task %s was not started on %s: %s", task_id, task.node, error)
        if scene.tolerates_loss:
            self._drop(scene.gang.id, (task_id,), str(error))
            return
        self._store.end_gang(scene.gang.id)
        self._fail(scene, error, task.node)

    def _lighthouse_refused(self, gang_id: int, error: EngineError) -> None:
        scene = self.board.scenes.get(gang_id)
        if scene is not None:
            self._fail(scene, error, None)

    def _fail(self, scene: Scene, error: EngineError, node: str | None) -> None:
        if scene.job is not None:
            failure = JobError(kind=ErrorKind.START, node=node, message=str(error))
            self.happened(scene.job.id, JobEvent.FAILURE_SEEN, str(error), failure)
