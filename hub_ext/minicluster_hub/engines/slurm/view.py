"""What Slurm has of this cluster: nodes, allocations and steps, read again and again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from minicluster_hub.engines.slurm.commands import Commands, SlurmUnavailable
from minicluster_hub.engines.slurm.names import AllocationName, Names, TaskName
from minicluster_hub.engines.slurm.parsing import SlurmJob, SlurmNode, SlurmStep

BUSY_S, USUAL_S, IDLE_S = 0.4, 5.0, 10.0
"""The shortest pause between two readings, the longest while there is something of ours, and otherwise."""
_OF_QUIET = 0.1
"""The pause as a share of the time in which nothing has changed."""
_AGAIN_S = 2.0
"""The pause after a reading that failed."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A job of Slurm that was made for a request."""

    job: SlurmJob
    name: AllocationName


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A step that runs a task."""

    step: SlurmStep
    name: TaskName


class SlurmView:
    """polls: how many readings are over. on_change: called when a reading differs from the one before.

    busy: whether something is about to change. users: whose jobs are read, once all of ours are known.
    """

    def __init__(
        self,
        commands: Commands,
        names: Names,
        users: Callable[[], Collection[str]],
        busy: Callable[[], bool],
        log: logging.Logger,
    ) -> None:
        self.polls = 0
        self.nodes: dict[str, SlurmNode] = {}
        self.allocations: dict[int, Allocation] = {}
        self.tasks: dict[int, RunningTask] = {}
        self.on_change: Callable[[], None] = lambda: None
        self._commands = commands
        self._names = names
        self._users = users
        self._busy = busy
        self._log = log
        self._soon = asyncio.Event()
        self._polled = asyncio.Event()
        self._reading = False
        self._polling: asyncio.Task[None] | None = None
        self._changed_at = time.monotonic()

    async def open(self) -> None:
        """Read everything once, then again and again. Raises SlurmError."""
        await self._read(None)
        self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    def poll_soon(self) -> None:
        self._soon.set()

    async def next_poll(self) -> None:
        """Wait for a reading that begins after this call."""
        until = self.polls + (2 if self._reading else 1)
        while self.polls < until:
            self._soon.set()
            polled = self._polled
            await polled.wait()

    def allocation_named(self, name: str) -> Allocation | None:
        mine = (one for one in self.allocations.values() if one.job.name == name)
        return max(mine, key=lambda one: (one.job.has_nodes, one.job.pending, -one.job.id), default=None)

    def runs(self, slurm_job: int) -> bool:
        """Whether an allocation has its nodes."""
        found = self.allocations.get(slurm_job)
        return found is not None and found.job.running

    def is_up(self, node: str) -> bool:
        found = self.nodes.get(node)
        return found is not None and found.up

    async def _poll(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._pause_s()):
                    await self._soon.wait()
            except TimeoutError:
                pass
            self._soon.clear()
            try:
                await self._read(self._users())
            except SlurmUnavailable as error:
                self._log.warning("Slurm is not seen: %s", error)
                await asyncio.sleep(_AGAIN_S)
            except Exception:
                # An answer that is not understood must not end the readings: nothing could be ended any more.
                self._log.exception("Slurm's answer is not understood")
                await asyncio.sleep(_AGAIN_S)
            # However often it is asked for: no more than some readings in a second.
            await asyncio.sleep(BUSY_S / 4)

    def _pause_s(self) -> float:
        """Return the pause before the next reading. Slurm has many others to serve, too."""
        if self._busy():
            return BUSY_S
        quiet_s = time.monotonic() - self._changed_at
        return min(max(BUSY_S, _OF_QUIET * quiet_s), USUAL_S if self.allocations else IDLE_S)

    async def _read(self, users: Collection[str] | None) -> None:
        self._reading = True
        try:
            # Steps first: when a step is gone and its allocation is still there, then it ended by itself.
            steps = await self._commands.steps(users)
            jobs, nodes = await asyncio.gather(self._commands.jobs(users), self._commands.nodes())
        finally:
            self._reading = False
        before = self.nodes, self.allocations, self.tasks
        self.nodes = {node.name: node for node in nodes}
        self.allocations = {job.id: Allocation(job, name) for job in jobs if (name := self._name(job))}
        self.tasks = {name.task_id: RunningTask(step, name) for step in steps if (name := self._task(step))}
        self.polls += 1
        polled, self._polled = self._polled, asyncio.Event()
        polled.set()
        if before != (self.nodes, self.allocations, self.tasks):
            self._changed_at = time.monotonic()
            self.on_change()

    def _name(self, job: SlurmJob) -> AllocationName | None:
        return self._names.read_allocation(job.name, job.user)

    def _task(self, step: SlurmStep) -> TaskName | None:
        return self._names.read_task(step.name, step.job_id)
