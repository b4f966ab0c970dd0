"""Carries out what was decided: the only one that changes tasks, gangs and jobs for the reconciler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from minicluster.wire import ErrorKind, JobError
from minicluster_hub.control.engine_actions import EngineWork
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.engines.base import Engine, EngineError
from minicluster_hub.jobs.actions import (
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
from minicluster_hub.jobs.gang_state import GangState
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store import Store


class Service(Protocol):
    """What the executor tells: the reconciler."""

    def wake(self) -> None: ...
    def heartbeat(self, task_id: int) -> None: ...
    def pause_growth(self, job_id: int, *, refused: bool = False) -> None: ...


class Executor:
    """See the module. Each action can be repeated."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        status_cache: StatusCache,
        work: EngineWork,
        service: Service,
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._store = store
        self._engine = engine
        self._status_cache = status_cache
        self._work = work
        self._service = service
        self._clock = clock
        self._log = log

    def carry_out(self, action: Action) -> None:
        """Do it, or begin it if the engine takes its time."""
        match action:
            case MarkStarted(task):
                self._service.heartbeat(task.id)
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
            case Happened(job_id, event, reason, error, losses):
                self.happened(job_id, event, reason, error, losses)
            case _:
                self._begin(action)

    def _begin(self, action: Action) -> None:
        """Begin what the engine takes its time for."""
        match action:
            case StartTask(task):
                self._work.start_task(task, self._status_cache.gang_states[task.gang_id], self._task_refused)
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
        gang_state = self._status_cache.gang_states[gang_id]
        nodes = ", ".join(task.node for task in gang_state.tasks if task.id in task_ids)
        self._log.info("gang %s goes on without %s%s", gang_id, nodes, f": {reason}" if reason else "")
        self._store.drop_tasks(gang_id, task_ids, self._clock())
        if gang_state.job is not None and gang_state.tolerates_loss:
            self._service.pause_growth(gang_state.job.id, refused=bool(reason))
            why = f"{nodes} {f'leaves: {reason}' if reason else 'is lost'}; the others go on"
            self._store.note(gang_state.job.id, "shrunk", why, self._clock())
            self._status_cache.notify(gang_state.job.id)

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
        self._status_cache.notify(job_id)
        self._service.wake()
        return record

    def _task_refused(self, task_id: int, error: EngineError) -> None:
        """Fail the job whose task cannot start; one that was only to join a running attempt is dropped."""
        task = next((task for task in self._status_cache.world.tasks if task.id == task_id), None)
        gang_state = self._status_cache.gang_states.get(task.gang_id) if task else None
        if task is None or gang_state is None:
            return
        self._log.warning("task %s was not started on %s: %s", task_id, task.node, error)
        if gang_state.tolerates_loss:
            self._drop(gang_state.gang.id, (task_id,), str(error))
            return
        self._store.end_gang(gang_state.gang.id)
        self._fail(gang_state, error, task.node)

    def _lighthouse_refused(self, gang_id: int, error: EngineError) -> None:
        gang_state = self._status_cache.gang_states.get(gang_id)
        if gang_state is not None:
            self._fail(gang_state, error, None)

    def _fail(self, gang_state: GangState, error: EngineError, node: str | None) -> None:
        if gang_state.job is not None:
            failure = JobError(kind=ErrorKind.START, node=node, message=str(error))
            self.happened(gang_state.job.id, JobEvent.FAILURE_SEEN, str(error), failure)
