"""One service's life: stands by until it leads, then acts until it ends or leads no more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from minicluster_hub.duty import Duty
from minicluster_hub.handlers.context import Context
from minicluster_hub.standby import Standby

_UNTOLD_S = 3600.0
"""How long a snapshot's file may wait for the report that tells of it."""


@dataclass(frozen=True)
class Shift:
    """See the module."""

    context: Context
    duty: Duty

    async def run(self) -> None:
        """Raises NotLeading when another service leads, and what the reconciler dies of."""
        if not await self.duty.take():
            await self._stand_by()
        await self._lead()

    async def _stand_by(self) -> None:
        context = self.context
        standby = Standby(context.store, context.board, context.logs, context.clock, context.log)
        await _while_all_run(asyncio.ensure_future(self.duty.taken()), standby.run())
        context.log.info("this job service leads from now on")
        # What was shown until now knows nothing of the engine: nobody may be told anything by it.
        context.board.looked.clear()

    async def _lead(self) -> None:
        """Only the leader sweeps: another one's uploads are under way until then."""
        await asyncio.to_thread(self._sweep)
        await _while_all_run(self.duty.kept(), self._open_to_all(), self.context.reconciler.run())

    async def _open_to_all(self) -> None:
        await self.context.board.looked.wait()
        self.duty.begin()
        await asyncio.get_running_loop().create_future()

    def _sweep(self) -> None:
        blobs, store = self.context.blobs, self.context.store
        blobs.sweep()
        for job_id in blobs.jobs():
            blobs.of_job(job_id).remove_others(store.snapshots.blobs(job_id), _UNTOLD_S)


async def _while_all_run(*works: Any) -> None:
    """Run these until the first ends, and end the others; raise what it raised."""
    running = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for work in done:
            work.result()
    finally:
        for work in running:
            work.cancel()
        await asyncio.wait(running)
