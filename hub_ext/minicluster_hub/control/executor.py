"""Carries out the reconciler's actions. Apart from leasing, only this changes tasks, gangs and jobs.

Slow calls of the engine run in the background, one at a time for each task and lighthouse.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from minicluster.wire import ErrorKind, JobError
from minicluster_hub.control.liveness import Liveness
from minicluster_hub.control.operations import (
    Key,
    Operation,
    Verb,
    job_of,
    lighthouse_key,
    task_key,
)
from minicluster_hub.control.quarantine import Quarantine
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.engines.base import Engine, EngineError, LighthouseRefused, TaskLaunch
from minicluster_hub.jobs.actions import (
    Action,
    ApplyEvent,
    DataReady,
    DropTasks,
    EndGang,
    EndLighthouse,
    EndStray,
    EndTask,
    MarkEnded,
    MarkStarted,
    StartLighthouse,
    StartTask,
)
from minicluster_hub.jobs.gang_state import GangState
from minicluster_hub.jobs.records import JobRecord, TaskRecord
from minicluster_hub.jobs.slot_numbers import HALF, is_half, slot_of
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store import Store, StoreError

RETRY_S = 1.0


class PauseGrowth(Protocol):
    """Gives a job no more nodes for a while; for longer when a node was refused."""

    def __call__(self, job_id: int, *, refused: bool = False) -> None: ...


class Executor:
    """Each action can be repeated. `wake` is called when something changed."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        service_urls: tuple[str, ...],
        *,
        status_cache: StatusCache,
        quarantine: Quarantine,
        liveness: Liveness,
        pause_growth: PauseGrowth,
        wake: Callable[[], object],
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._store = store
        self._engine = engine
        self._service_urls = service_urls
        self._status_cache = status_cache
        self._quarantine = quarantine
        self._liveness = liveness
        self._pause_growth = pause_growth
        self._wake = wake
        self._clock = clock
        self._log = log
        self._under_way: dict[Key, asyncio.Task[None]] = {}

    def is_busy(self, key: Key) -> bool:
        return key in self._under_way

    async def close(self) -> None:
        """Cancel the engine's calls that are under way. The tasks keep running."""
        for work in self._under_way.values():
            work.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    def carry_out(self, action: Action) -> None:
        """Carry an action out. If the engine needs time for it, only begin it."""
        match action:
            case MarkStarted(task):
                self._liveness.record_heartbeat(task.id)
                self._store.task_started(task.id, self._clock())
            case MarkEnded(task):
                self._store.task_ended(task.id, self._clock())
                self._engine.forget(task.id)
                self._status_cache.notify()
            case EndGang(gang_id, reason):
                self._log.info("ending gang %s%s", gang_id, f": {reason}" if reason else "")
                self._store.end_gang(gang_id)
            case DropTasks(gang_id, task_ids, reason):
                self._drop(gang_id, task_ids, reason)
            case DataReady(job_id, attempt_id):
                self._store.datasets.ready_for(job_id, attempt_id)
            case ApplyEvent(job_id, event, reason, error, lost_attempts):
                self.apply_event(job_id, event, reason, error, lost_attempts)
            case _:
                self._begin_action(action)

    def _begin_action(self, action: Action) -> None:
        match action:
            case StartTask(task):
                self._begin(Verb.START, task_key(task.id), self._start(self._launch(task)))
            case EndTask(task):
                self._begin(Verb.END, task_key(task.id), self._engine.end(task.id))
            case EndStray(task_id):
                self._log.warning("ending task %s: the database has no row of it", task_id)
                self._begin(Verb.END, task_key(task_id), self._end_stray(task_id))
            case StartLighthouse(gang_id):
                self._begin(Verb.START, lighthouse_key(gang_id), self._start_lighthouse(gang_id))
            case EndLighthouse(gang_id):
                if lighthouses := self._engine.lighthouses:
                    self._begin(Verb.END, lighthouse_key(gang_id), lighthouses.end(gang_id))

    def apply_event(
        self,
        job_id: int,
        event: JobEvent,
        reason: str = "",
        error: JobError | None = None,
        lost_attempts: int | None = None,
    ) -> JobRecord:
        """Apply an event to a job and notify all who watch the job."""
        record = self._store.apply(
            job_id, event, self._clock(), reason=reason, error=error, lost_attempts=lost_attempts
        )
        self._log.info("job %s: %s -> %s %s", job_id, event, record.state, reason)
        self._status_cache.notify(job_id)
        self._wake()
        return record

    def _drop(self, gang_id: int, task_ids: tuple[int, ...], reason: str) -> None:
        gang_state = self._status_cache.gang_states[gang_id]
        nodes = ", ".join(task.node for task in gang_state.tasks if task.id in task_ids)
        self._log.info("gang %s goes on without %s%s", gang_id, nodes, f": {reason}" if reason else "")
        self._store.drop_tasks(gang_id, task_ids, self._clock())
        if gang_state.job is not None and gang_state.tolerates_loss:
            self._pause_growth(gang_state.job.id, refused=bool(reason))
            why = f"without {nodes} ({reason or 'lost'}): the other tasks go on"
            self._store.note(gang_state.job.id, "shrunk", why, self._clock())
            self._status_cache.notify(gang_state.job.id)

    # --- in the background ----------------------------------------------------------------------

    def _launch(self, task: TaskRecord) -> TaskLaunch:
        """Make a token and store its hash before the start. After a kill in between, a new token is made."""
        gang_state = self._status_cache.gang_states[task.gang_id]
        token = secrets.token_urlsafe(32)
        self._store.set_task_token(task.id, hashlib.sha256(token.encode()).hexdigest())
        return TaskLaunch(
            task.id,
            task.gang_id,
            gang_state.gang.owner,
            task.node,
            tuple(map(slot_of, task.slots)),
            token,
            self._service_urls,
            job_id=gang_state.job.id if gang_state.job else None,
            attempt_id=gang_state.job.attempt_id if gang_state.job else None,
            image=gang_state.gang.image,
            shm_bytes=gang_state.gang.shm_bytes,
            epoch=self._store.epoch,
            gpu_share=HALF if any(map(is_half, task.slots)) else None,
            serves=gang_state.job is not None and gang_state.job.spec.serve is not None,
        )

    async def _start(self, launch: TaskLaunch) -> None:
        try:
            await self._engine.start(launch)
        except EngineError as error:
            self._task_refused(launch.task_id, error)

    async def _end_stray(self, task_id: int) -> None:
        await self._engine.end(task_id)
        self._engine.forget(task_id)

    async def _start_lighthouse(self, gang_id: int) -> None:
        try:
            if (lighthouses := self._engine.lighthouses) is None:
                raise LighthouseRefused("this cluster's engine runs no fault-tolerant jobs")
            await lighthouses.start(gang_id)
        except EngineError as error:
            if gang_state := self._status_cache.gang_states.get(gang_id):
                self._fail(gang_state, error, None)
        self._wake()
        # The pause keeps a lighthouse that dies at once from being restarted in a tight loop.
        await asyncio.sleep(RETRY_S)

    def _begin(self, doing: str, key: Key, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._as_leader(work))
        self._under_way[key] = task
        task.add_done_callback(lambda done: self._done(Operation(doing, *key), done))

    async def _as_leader(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, unless another service has become the leader since the decision."""
        try:
            self._store.confirm_lead()
        except BaseException:
            work.close()
            raise
        await work

    def _done(self, operation: Operation, done: asyncio.Task[None]) -> None:
        self._under_way.pop((operation.kind, operation.id), None)
        error = None if done.cancelled() else done.exception()
        if isinstance(error, (EngineError, StoreError)):
            self._log.error("%s failed; trying again in %s s: %s", operation, RETRY_S, error)
            asyncio.get_running_loop().call_later(RETRY_S, self._wake)
            return
        if error is None:
            self._quarantine.worked(operation)
        else:
            self._quarantine.failed(operation, job_of(operation, self._status_cache.stored), error)
        self._wake()

    def _task_refused(self, task_id: int, error: EngineError) -> None:
        """Fail the job whose task cannot start. A task that should join a running attempt is only dropped."""
        task = next((task for task in self._status_cache.stored.tasks if task.id == task_id), None)
        gang_state = self._status_cache.gang_states.get(task.gang_id) if task else None
        if task is None or gang_state is None:
            return
        self._log.warning("task %s was not started on %s: %s", task_id, task.node, error)
        if gang_state.tolerates_loss:
            self._drop(gang_state.gang.id, (task_id,), str(error))
            return
        self._store.end_gang(gang_state.gang.id)
        self._fail(gang_state, error, task.node)

    def _fail(self, gang_state: GangState, error: EngineError, node: str | None) -> None:
        if gang_state.job is not None:
            failure = JobError(kind=ErrorKind.START, node=node, message=str(error))
            self.apply_event(gang_state.job.id, JobEvent.FAILURE_SEEN, str(error), failure)
