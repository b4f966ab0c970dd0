"""One service's life: stands by until it leads, then acts until it ends or leads no more."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from minicluster_hub.control.leader_election import LeaderElection
from minicluster_hub.servers.idle_watch import IdleWatch
from minicluster_hub.storage.artifacts import Retention
from minicluster_hub.storage.retention import OldJobsRemoval
from minicluster_hub.web.context import Context


@dataclass(frozen=True)
class ServiceLifecycle:
    """See the module."""

    context: Context
    leader_election: LeaderElection

    async def run(self) -> None:
        """Raises NotLeading when another service leads, and what the reconciler dies of."""
        await self.leader_election.taken()
        self.context.log.info("this job service leads from now on")
        await self._lead()

    async def _lead(self) -> None:
        """Only the leader sweeps: another one's uploads are under way until then."""
        self._forget_known()
        await asyncio.to_thread(self._sweep)
        acting = self.leader_election.kept(), self._open_to_all(), self.context.reconciler.run()
        await _while_all_run(
            *acting,
            self._retention().run(),
            self._old_jobs().run(),
            self._offer_images(),
            self.context.data_sets.run(),
            self._idle_watch().run(),
            self.context.notice_sender.run(self.context.status_cache.changes),
        )

    async def _open_to_all(self) -> None:
        await self.context.status_cache.looked.wait()
        self.leader_election.begin()
        await asyncio.get_running_loop().create_future()

    async def _offer_images(self) -> None:
        await self.context.catalogue.run()
        await asyncio.get_running_loop().create_future()

    def _retention(self) -> Retention:
        context = self.context
        days = context.limits.artifacts_keep_days
        return Retention(context.store, context.blobs, days, context.clock, context.log)

    def _old_jobs(self) -> OldJobsRemoval:
        context = self.context
        days = context.limits.jobs_keep_days
        return OldJobsRemoval(context.store, context.blobs, context.logs, days, context.clock, context.log)

    def _idle_watch(self) -> IdleWatch:
        context = self.context
        return IdleWatch(context.store, context.reconciler, context.idle_limits, context.clock, context.log)

    def _forget_known(self) -> None:
        """Read again what another service may have written until now."""
        store = self.context.store
        store.owners.forget_known()
        store.claims.forget_known()
        self.context.accounting.allowed.forget_known()
        self.context.storage.forget_known()

    def _sweep(self) -> None:
        self.context.blobs.sweep()
        self.context.data_sets.files.sweep()
        logs = self.context.logs
        self.context.storage.measure_outputs(logs.jobs(), logs.cost_bytes)


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
