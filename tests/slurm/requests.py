"""Gangs on Slurm without a job service: asked for, granted, started, given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.capabilities import Place, PlacedGang, QueueRequest
from minicluster_hub.engines.slurm.engine import SlurmEngine

from ..patience import WITHIN_S, eventually
from .daemons import SlurmDaemons

NOWHERE = "http://127.0.0.1:1/"


class Gangs:
    """The gangs of a test; each owner's has its own job, gang and task ids."""

    def __init__(self, slurm: SlurmDaemons, engine: SlurmEngine) -> None:
        self.slurm = slurm
        self.engine = engine
        self._placed: list[PlacedGang] = []

    async def granted(
        self, job_id: int, owner: str, replicas: int = 1, *, one_per_node: bool = True
    ) -> tuple[Place, ...]:
        """Ask for a gang, and wait until it is granted."""
        queue = self.engine.batch_queue
        request = QueueRequest(job_id, owner, 0, replicas, replicas, 1, one_per_node)
        await eventually(lambda: job_id in queue.request([request], self._placed).granted)
        places = queue.request([request], self._placed).granted[job_id]
        tasks = {100 * job_id + number: place for number, place in enumerate(places)}
        self._placed.append(PlacedGang(job_id, job_id, 0, tasks))
        queue.request([], self._placed)
        return places

    async def started(self, job_id: int, owner: str, nodes: int = 1) -> list[int]:
        """Start a gang's agents; return the tasks' ids once their steps run."""
        places = await self.granted(job_id, owner, nodes)
        for number, place in enumerate(places):
            launch = TaskLaunch(
                100 * job_id + number,
                job_id,
                owner,
                place.node,
                place.slots,
                f"token-of-{owner}-{number}",
                (NOWHERE,),
                job_id=job_id,
                attempt_id=1,
            )
            await self.engine.start(launch)
        task_ids = [100 * job_id + number for number in range(len(places))]
        for task_id in task_ids:
            await eventually(lambda task_id=task_id: self._runs(task_id))
        return task_ids

    async def end(self) -> None:
        """End all tasks, and give everything back."""
        tasks = list(self.engine.tasks())
        await asyncio.gather(*map(self.engine.end, tasks))
        for task_id in tasks:
            self.engine.forget(task_id)
        self._placed.clear()
        self.engine.batch_queue.request([], [])
        async with asyncio.timeout(WITHIN_S):
            while self.slurm.run("squeue", "-h", "-o", "%i"):
                self.engine.batch_queue.request([], [])
                await asyncio.sleep(0.1)

    def _runs(self, task_id: int) -> bool:
        view = self.engine.tasks()[task_id]
        assert view.alive, view
        return not view.starting


@asynccontextmanager
async def gangs(slurm: SlurmDaemons, engine: SlurmEngine) -> AsyncIterator[Gangs]:
    await engine.open()
    found = Gangs(slurm, engine)
    try:
        yield found
    finally:
        await found.end()
        await engine.close()
