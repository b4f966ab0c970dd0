"""The life of one service: it stands by until it leads, then acts until it ends or loses the lead.

A follower reads nothing. Everything that watches the store or the cluster starts with the lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from minicluster_hub.control.leader_election import LeaderElection
from minicluster_hub.control.stall_watch import StallWatch
from minicluster_hub.machines.own_machine import read_own_machine
from minicluster_hub.metrics import JobWatch
from minicluster_hub.servers.idle_watch import IdleWatch
from minicluster_hub.storage.retention import ArtifactRetention, JobRetention
from minicluster_hub.web.context import Context


async def run(context: Context, election: LeaderElection) -> None:
    """Stand by, then lead. Raises NotLeading when another service leads, and errors of the reconciler."""
    await election.wait_for_lead()
    context.log.info("this job service leads from now on")
    _clear_caches(context)
    # Only now: until here, the uploads under way were those of another leader.
    await asyncio.to_thread(_sweep, context)
    store, blobs, clock, log = context.store, context.blobs, context.clock, context.log
    files = ArtifactRetention(store, blobs, context.limits.artifacts_keep_days, clock, log)
    old_jobs = JobRetention(
        store, blobs, context.logs, context.recorder.files, context.limits.jobs_keep_days, clock, log
    )
    slots_changed = context.reconciler.slots_changed
    idle_watch = IdleWatch(store, context.status_cache, slots_changed, context.idle_limits, clock, log)
    await _while_all_run(
        election.keep_lead(),
        _then_wait(_begin(context, election)),
        context.reconciler.run(),
        files.run(),
        old_jobs.run(),
        context.compile_caches.run(),
        _then_wait(context.catalogue.run()),
        context.data_sets.run(),
        idle_watch.run(),
        JobWatch(store, context.metrics, log).run(context.status_cache.changes),
        StallWatch(store, context.status_cache, clock, log).run(),
        context.notice_sender.run(context.status_cache.changes),
        read_own_machine(context.machines, log),
        context.recorder.run(),
        context.sweeps.run(),
        context.sessions.run(),
        context.serving.manager.run(),
    )


def _clear_caches(context: Context) -> None:
    """Have the caches of the store read again: another leader may have changed it."""
    context.store.owners.forget_known()
    context.store.reservations.forget_known()
    context.accounting.entitlements.forget_known()
    context.storage.forget_known()


def _sweep(context: Context) -> None:
    context.blobs.sweep()
    context.data_sets.files.sweep()
    context.compile_caches.files.sweep()
    context.machines.sweep()
    context.storage.measure_outputs(context.logs.jobs(), context.logs.cost_bytes)


async def _begin(context: Context, election: LeaderElection) -> None:
    """Begin to answer requests after the first observation."""
    await context.status_cache.observed.wait()
    election.begin()


async def _then_wait(work: Awaitable[None]) -> None:
    """Do the work, then wait for ever."""
    await work
    await asyncio.get_running_loop().create_future()


async def _while_all_run(*works: Any) -> None:
    """Run these until the first ends, and cancel the others. Raises the error of the first."""
    running = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for work in done:
            work.result()
    finally:
        for work in running:
            work.cancel()
        await asyncio.wait(running)
