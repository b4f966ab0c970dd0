"""Places notebook servers on nodes and slots: decides from the stored leases, saves, waits for warm slots.

The spawner starts and stops the servers. A placement lasts until the spawner deletes it, even past its time
limit: only the spawner knows when the server has stopped and its GPUs are free.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakValueDictionary

from minicluster.wire import PlaceServer, ServerPlacement
from minicluster_hub.engines.base import Engine, GpusRefused
from minicluster_hub.jobs.records import ServerRecord, StoredState
from minicluster_hub.jobs.slot_numbers import total
from minicluster_hub.jobs.views import server_message
from minicluster_hub.scheduling.limits import Quota
from minicluster_hub.scheduling.servers import (
    Ledger,
    MakeRoom,
    Placed,
    ServerLimits,
    ServerRefused,
    check_quota,
    check_same,
    place_server,
)
from minicluster_hub.store import HomeMoved, SlotTaken, Store
from minicluster_hub.support.notifier import NODES, Notifier
from minicluster_hub.usage.accounting import UsageAccounting
from minicluster_hub.usage.reservations import ReservationBook

AGAIN_S = 0.05
"""Pause in seconds after another service on the same database took a slot first."""
_ANEW = "Compute with %%distribute, or stop the server on the hub's page and start it with a GPU."


class ServerPlaces:
    """Has no state: it reads all from the store.

    excluded_from: returns the slots that reservations forbid an owner until a time, and why.
    changes: notifies NODES when slots become free. slots_changed: called when a server took or freed slots.
    wake: called when warm gangs are to end. warm_slots_timeout_s: how long to wait for warm slots.
    turns: one lock for each server, by owner and name: engines hold GPUs by these, not by a placement's id.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        reservations: ReservationBook,
        accounting: UsageAccounting,
        excluded_from: Callable[[str, float], tuple[frozenset[tuple[str, int]], str]],
        changes: Notifier,
        slots_changed: Callable[[], None],
        wake: Callable[[], None],
        limits: ServerLimits,
        clock: Callable[[], float],
        log: logging.Logger,
        warm_slots_timeout_s: float = 10.0,
    ) -> None:
        self._store = store
        self._engine = engine
        self._reservations = reservations
        self._accounting = accounting
        self._excluded_from = excluded_from
        self._changes = changes
        self._slots_changed = slots_changed
        self._wake = wake
        self._limits = limits
        self._clock = clock
        self._log = log
        self.locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._warm_slots_timeout_s = warm_slots_timeout_s

    def _lock(self, owner: str, name: str) -> asyncio.Lock:
        """Return the server's lock. The dictionary forgets it when nobody holds it or waits for it."""
        return self.locks.setdefault((owner, name), asyncio.Lock())

    async def place(self, owner: str, name: str, ask: PlaceServer) -> ServerPlacement:
        """Return the server's placement: the present one, else a new one. Raises ServerRefused."""
        async with self._lock(owner, name):
            record = await self._patiently(lambda: self._try(owner, name, ask))
            if not record.slots:
                return self._message(record)
            try:
                gpus = await self._hold_gpus(record)
            except GpusRefused as refused:
                await self._end(record)
                raise ServerRefused("no_free_gpu", str(refused), "Tell the cluster's admin.") from refused
            self._store.idle.held(record.id, gpus)
            return self._message(record).model_copy(update={"gpus": gpus})

    async def again(self, owner: str, name: str) -> ServerPlacement:
        """Give a server the GPUs again that it left idle. Raises ServerRefused if that is impossible."""
        async with self._lock(owner, name):
            return await self._again(owner, name)

    async def _again(self, owner: str, name: str) -> ServerPlacement:
        record = await self._patiently(lambda: self._try_again(owner, name))
        try:
            gpus = await self._hold_gpus(record)
            if set(gpus) != set(record.gpus):
                raise GpusRefused(f"{record.node} has other GPUs free than those that this server sees")
        except GpusRefused as refused:
            self._store.idle.reclaim(record.id, self._clock())
            await self._release_gpus(record)
            self._store.idle.freed(record.id)
            self._slots_changed()
            raise ServerRefused("other_gpus", str(refused), _ANEW) from refused
        self._log.info("the server %r of %s has its GPUs again", name, owner)
        return self._message(record).model_copy(update={"gpus": gpus})

    async def _patiently(self, attempt: Callable[[], ServerRecord | None]) -> ServerRecord:
        """Try until there is a record, or warm gangs take too long to end. Raises ServerRefused."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._warm_slots_timeout_s
        async with self._changes.listen(NODES) as subscription:
            while True:
                try:
                    record, again_s = attempt(), self._warm_slots_timeout_s
                except (SlotTaken, HomeMoved) as error:
                    self._log.info("placing a server again: %s", error)
                    record, again_s = None, AGAIN_S
                if record is not None:
                    return record
                if loop.time() >= until:
                    raise _slow(self._warm_slots_timeout_s)
                await subscription.wait(min(again_s, until - loop.time()))

    async def end(self, owner: str, name: str, place_id: int | None = None) -> None:
        """Delete a server's placement. place_id: delete only this one; None: whichever the server has."""
        async with self._lock(owner, name):
            record = self._store.server(owner, name)
            if record is not None and place_id in (None, record.id):
                await self._end(record)

    async def _end(self, record: ServerRecord) -> None:
        await self._release_gpus(record)
        if self._store.end_server(record.id):
            self._log.info("the server %r of %s gave back its slots", record.name, record.owner)
            if not any(one.owner == record.owner for one in self._store.open_state().servers):
                # Nobody is left to run the first cell that it waits for.
                self._store.end_prepared(record.owner)
            self._slots_changed()

    async def _hold_gpus(self, record: ServerRecord) -> tuple[str, ...]:
        """Return the ids of a server's GPUs; none if the engine assigns GPUs in another way."""
        holds = self._engine.gpu_holds
        return await holds.hold(record) if holds else ()

    async def _release_gpus(self, record: ServerRecord) -> None:
        if holds := self._engine.gpu_holds:
            await holds.release(record.owner, record.name)

    def all(self) -> tuple[ServerPlacement, ...]:
        homes, now = self._store.homes(), self._clock()
        servers = self._store.open_state().servers
        return tuple(server_message(server, homes.get(server.owner), now) for server in servers)

    def _try(self, owner: str, name: str, ask: PlaceServer) -> ServerRecord | None:
        """Return the server's record, or None while warm gangs end for it."""
        known = self._store.server(owner, name)
        if known is not None:
            check_same(known, ask)
            return known
        now = self._clock()
        chosen = self._choose(owner, ask, now)
        if chosen is None:
            return None
        place, given_up_home = chosen
        record = self._store.place_server(
            owner,
            name,
            (place.node, place.slots),
            until=place.until,
            shared_home=ask.shared_home,
            now=now,
            given_up_home=given_up_home,
        )
        what = f"slots {', '.join(map(str, place.slots)) or 'none'}, image {ask.image or 'not given'}"
        self._log.info("the server %r of %s is placed on %s: %s", name, owner, place.node, what)
        self._slots_changed()
        return record

    def _try_again(self, owner: str, name: str) -> ServerRecord | None:
        known = self._store.server(owner, name)
        if known is None or not known.slots:
            raise ServerRefused("no_gpus", "this notebook server was started without a GPU", _ANEW)
        if known.reclaimed_at is None:
            return known
        if any(lease.server_id == known.id for lease in self._store.open_state().leases):
            return None
        now = self._clock()
        ask = PlaceServer(node=known.node, gpus=total(known.slots), shared_home=True)
        chosen = self._choose(owner, ask, now)
        if chosen is None:
            return None
        place, _ = chosen
        record = self._store.idle.again(known, place.slots, place.until, now)
        self._slots_changed()
        return record

    def _choose(self, owner: str, ask: PlaceServer, now: float) -> tuple[Placed, str | None] | None:
        """Return a placement and the home that it replaces, if any; None while warm gangs end for it."""
        if ask.gpus and (queue := self._engine.batch_queue):
            message = f"notebook servers get no GPUs here: {queue.name} owns them"
            raise ServerRefused(
                "no_gpus", message, f"Compute with %%distribute, or in a job of {queue.name}."
            )
        stored = self._store.open_state()
        nodes = self._reservations.open_nodes(self._engine.nodes(), now)
        self._check_quota(owner, ask, stored)
        may_last_until = now + min(ask.gpu_s or self._limits.max_gpu_s, self._limits.max_gpu_s)
        kept = self._excluded_from(owner, may_last_until)
        ledger = Ledger(nodes, stored.leases, stored.servers, self._store.home_of(owner), *kept)
        place = place_server(owner, ask, ledger, self._limits, now)
        if isinstance(place, MakeRoom):
            for gang_id in {task.gang_id for task in stored.tasks if task.id in place.task_ids}:
                self._log.info("ending warm gang %s for a notebook server of %s", gang_id, owner)
                self._store.end_gang(gang_id)
            self._wake()
            return None
        return place, ledger.home if ask.new_home else None

    def _check_quota(self, owner: str, ask: PlaceServer, stored: StoredState) -> None:
        quotas = self._accounting.quotas
        held = total(lease.slot for lease in stored.leases if lease.owner == owner and not lease.warm)
        check_quota(ask, quotas.of(owner), held, self._accounting.gpu_hours(owner, self._clock()))
        groups_of = quotas.groups_of
        for group, slots in quotas.together().items():
            if group in groups_of(owner):
                others = (
                    lease for lease in stored.leases if not lease.warm and group in groups_of(lease.owner)
                )
                theirs = total(lease.slot for lease in others)
                check_quota(ask, Quota(slots=slots), theirs, 0.0, f"the quota of group {group}")

    def _message(self, record: ServerRecord) -> ServerPlacement:
        return server_message(record, self._store.home_of(record.owner), self._clock())


def _slow(waited_s: float) -> ServerRefused:
    message = f"GPUs that idle jobs kept warm were not given back within {waited_s:g} s"
    return ServerRefused("no_free_gpu", message, "Try again in a moment.")
