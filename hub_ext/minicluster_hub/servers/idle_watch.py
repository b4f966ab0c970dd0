"""Warns owners whose notebook servers leave GPUs idle, and later gives the GPUs to others.

It runs at each report of a data set agent. It stores a decision before it acts, so that a service that ends
in between completes the decision at its next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator

from minicluster.wire import JobState, NoticeEvent
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.datasets.node_tracker import GPUS
from minicluster_hub.engines.base import EngineError
from minicluster_hub.engines.capabilities import GpuHolds
from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.jobs.views import IdleGpus
from minicluster_hub.scheduling.holders import clock_time
from minicluster_hub.scheduling.idle import (
    GpuUse,
    IdleLimits,
    Step,
    idle_since,
    next_step,
    reclaim_at,
)
from minicluster_hub.store import NotLeading, Store, StoreError

_AGAIN_S = 5.0
"""Pause in seconds after Docker or the database did not answer."""
_GB = 1e9


class IdleWatch:
    """Runs in the leader. The store has all state. slots_changed: called when slots are freed."""

    def __init__(
        self,
        store: Store,
        status_cache: StatusCache,
        slots_changed: Callable[[], None],
        limits: IdleLimits,
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._store = store
        self._status_cache = status_cache
        self._slots_changed = slots_changed
        self._limits = limits
        self._clock = clock
        self._log = log

    @property
    def _gpu_holds(self) -> GpuHolds | None:
        return self._status_cache.engine.gpu_holds

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._status_cache.observed.wait()
        async with self._status_cache.data_set_tracker.notifier.listen(GPUS) as subscription:
            while True:
                try:
                    await self._check_all()
                    again_s = None
                except NotLeading:
                    raise
                except (StoreError, EngineError) as error:
                    self._log.warning("idle GPUs are checked again in %s s: %s", _AGAIN_S, error)
                    again_s = _AGAIN_S
                await subscription.wait(again_s)

    async def _check_all(self) -> None:
        stored, now = self._status_cache.stored, self._clock()
        await self._release_strays({(server.owner, server.name) for server in stored.servers})
        needed = any(job.state is JobState.QUEUED for job in stored.jobs)
        holding = {lease.server_id for lease in stored.leases}
        for server in stored.servers:
            if server.id in holding and server.reclaimed_at is not None:
                await self._reclaim(server)
            elif server.id in holding and (use := self._use(server, now)) is not None:
                await self._check(server, use, now, needed=needed)
        self._status_cache.set_idle(dict(self._shown(now, needed=needed)))

    async def _release_strays(self, placed: Collection[tuple[str, str]]) -> None:
        """Release GPUs of servers without a placement in the store, as after a restored backup."""
        if (holds := self._gpu_holds) is None:
            return
        for owner, name in [key for key in holds.all() if key not in placed]:
            self._log.warning("GPUs are held for the server %r of %s, which is not placed", name, owner)
            await holds.release(owner, name)

    async def _check(self, server: ServerRecord, use: GpuUse, now: float, *, needed: bool) -> None:
        match next_step(server, use, self._limits, now, needed=needed):
            case Step.WARN:
                self._store.idle.warned(server.id, now)
                due = reclaim_at(server, use, self._limits)
                self._notify_owner(
                    server, NoticeEvent.GPU_WARNED, warning_text(server, use, self._limits, due, now), now
                )
            case Step.CALM:
                self._store.idle.warned(server.id, None)
                self._slots_changed()
            case Step.RECLAIM:
                self._store.idle.reclaim(server.id, now)
                self._notify_owner(server, NoticeEvent.GPU_RECLAIMED, reclaimed_text(server, use, now), now)
                await self._reclaim(server)
            case Step.NOTHING:
                pass

    async def _reclaim(self, server: ServerRecord) -> None:
        """Take back a server's GPUs, the engine's first: the next user of the slots must find them free."""
        if holds := self._gpu_holds:
            await holds.release(server.owner, server.name)
        self._store.idle.freed(server.id)
        self._slots_changed()

    def _notify_owner(self, server: ServerRecord, event: NoticeEvent, reason: str, now: float) -> None:
        self._log.info("the GPUs of the server %r of %s: %s", server.name, server.owner, reason)
        self._status_cache.send_notices(server.owner, event, now, server=server.name, reason=reason)
        self._slots_changed()

    def _use(self, server: ServerRecord, now: float) -> GpuUse | None:
        gpus = self._gpu_holds.all().get((server.owner, server.name), ()) if self._gpu_holds else ()
        return self._status_cache.data_set_tracker.gpus.use(server.node, gpus, now)

    def _shown(self, now: float, *, needed: bool) -> Iterator[tuple[int, IdleGpus]]:
        """Yield the pages' data about servers with warned owners."""
        for server in self._status_cache.stored.servers:
            if server.warned_at is None or server.reclaimed_at is not None:
                continue
            if (use := self._use(server, now)) is not None:
                due = reclaim_at(server, use, self._limits, needed=needed)
                full = use.held_bytes if use.held_bytes > self._limits.held_bytes else 0
                yield server.id, IdleGpus(idle_since(server, use), None if full else due, full)


def warning_text(server: ServerRecord, use: GpuUse, limits: IdleLimits, due: float | None, now: float) -> str:
    """Return the owner's warning: what will happen, and what to do about it."""
    since = f"nothing was computed on them since {clock_time(idle_since(server, use), now)}"
    if due is None:
        return f"{since}; stop the server if you do not need them, so that others can have them"
    if use.held_bytes <= limits.held_bytes:
        return f"{since}; without use they go to others at {clock_time(due, now)}, and the server goes on"
    return (
        f"{since}, but kernels hold {use.held_bytes / _GB:.1f} GB of a GPU's memory; delete what you do not "
        "need and call torch.cuda.empty_cache(), or stop the server, so that others can have them from "
        f"{clock_time(due, now)} on"
    )


def reclaimed_text(server: ServerRecord, use: GpuUse, now: float) -> str:
    """Return the owner's notice: the GPUs were taken back, and what that means."""
    return (
        f"nothing was computed on them since {clock_time(idle_since(server, use), now)}; the server and its "
        "kernels keep running, but must not use the GPUs any more: compute with %%distribute, or stop the "
        "server and start it with a GPU"
    )
