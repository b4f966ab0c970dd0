"""What is under way in the engine: one thing at a time for each task and each lighthouse."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from minicluster_hub.control.steps import ENDING, STARTING, Key, Step, lighthouse_key, task_key
from minicluster_hub.engines.base import Engine, EngineError, LighthouseRefused, TaskLaunch
from minicluster_hub.jobs.gang_state import GangState
from minicluster_hub.jobs.records import TaskRecord
from minicluster_hub.store import Store, StoreError

RETRY_S = 1.0
Refused = Callable[[int, EngineError], None]
"""Told which task or gang the engine refused, and why."""
Ended = Callable[[Step, BaseException | None], None]
"""Told what was done, and what it raised that nobody expects of an engine."""


class EngineWork:
    """Starts and ends by the engine, in the background; `wake` is called when something is done."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        service_url: str,
        wake: Callable[[], None],
        ended: Ended,
        log: logging.Logger,
    ) -> None:
        self._store = store
        self._engine = engine
        self._service_url = service_url
        self._wake = wake
        self._ended = ended
        self._log = log
        self._under_way: dict[Key, asyncio.Task[None]] = {}

    def is_busy(self, key: Key) -> bool:
        return key in self._under_way

    async def close(self) -> None:
        """End what is under way; the tasks go on."""
        for work in self._under_way.values():
            work.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    def start_task(self, task: TaskRecord, gang_state: GangState, refused: Refused) -> None:
        """Keep the token's hash first, then start: a kill between the two only makes a new token."""
        token = secrets.token_urlsafe(32)
        self._store.arm_task(task.id, hashlib.sha256(token.encode()).hexdigest())
        launch = TaskLaunch(
            task.id,
            task.gang_id,
            gang_state.gang.owner,
            task.node,
            task.slots,
            token,
            self._service_url,
            job_id=gang_state.job.id if gang_state.job else None,
            attempt_id=gang_state.job.attempt_id if gang_state.job else None,
            image=gang_state.gang.image,
            shm_bytes=gang_state.gang.shm_bytes,
            epoch=self._store.epoch,
        )
        self._begin(STARTING, task_key(task.id), self._start_task(launch, refused))

    def end_task(self, task_id: int) -> None:
        self._begin(ENDING, task_key(task_id), self._engine.end(task_id))

    def end_stray(self, task_id: int) -> None:
        self._begin(ENDING, task_key(task_id), self._end_stray(task_id))

    def start_lighthouse(self, gang_id: int, refused: Refused) -> None:
        self._begin(STARTING, lighthouse_key(gang_id), self._start_lighthouse(gang_id, refused))

    def end_lighthouse(self, gang_id: int) -> None:
        if lighthouses := self._engine.lighthouses:
            self._begin(ENDING, lighthouse_key(gang_id), lighthouses.end(gang_id))

    async def _start_task(self, launch: TaskLaunch, refused: Refused) -> None:
        await self._or_refused(self._engine.start(launch), launch.task_id, refused)

    async def _start_lighthouse(self, gang_id: int, refused: Refused) -> None:
        if (lighthouses := self._engine.lighthouses) is None:
            refused(gang_id, LighthouseRefused("this cluster's engine runs no fault-tolerant jobs"))
        else:
            await self._or_refused(lighthouses.start(gang_id), gang_id, refused)
        self._wake()
        # One that dies at once is not started again and again.
        await asyncio.sleep(RETRY_S)

    async def _end_stray(self, task_id: int) -> None:
        await self._engine.end(task_id)
        self._engine.forget(task_id)

    async def _or_refused(self, work: Coroutine[Any, Any, None], what: int, refused: Refused) -> None:
        try:
            await work
        except EngineError as error:
            refused(what, error)

    def _begin(self, doing: str, key: Key, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._as_leader(work))
        self._under_way[key] = task
        task.add_done_callback(lambda done: self._done(Step(doing, *key), done))

    async def _as_leader(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, unless another service has taken over between the decision and now."""
        try:
            self._store.confirm_lead()
        except BaseException:
            work.close()
            raise
        await work

    def _done(self, step: Step, done: asyncio.Task[None]) -> None:
        self._under_way.pop((step.kind, step.id), None)
        error = None if done.cancelled() else done.exception()
        if isinstance(error, (EngineError, StoreError)):
            self._log.error("%s failed; trying again in %s s: %s", step, RETRY_S, error)
            asyncio.get_running_loop().call_later(RETRY_S, self._wake)
            return
        self._ended(step, error)
        self._wake()
