"""Gives notebook servers their places: decides over the stored ledger, saves, and waits for warm slots.

Whether a server runs is its spawner's business. A place lasts until it is deleted, also past its
time: only who stopped the server knows that its GPUs are free.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minicluster.wire import PlaceServer, ServerPlace
from minicluster_hub.bell import NODES
from minicluster_hub.models import ServerRecord
from minicluster_hub.reconciler import Reconciler
from minicluster_hub.scheduling.servers import (
    Ledger,
    MakeRoom,
    ServerLimits,
    ServerRefused,
    check_same,
    place_server,
)
from minicluster_hub.store import HomeMoved, SlotTaken, Store
from minicluster_hub.views import server_message

AGAIN_S = 0.05
"""After a slot was taken by another service on the same database."""


class ServerPlaces:
    """Keeps nothing of its own: the store has all. `patience_s`: how long to wait for warm slots."""

    def __init__(
        self,
        store: Store,
        reconciler: Reconciler,
        limits: ServerLimits,
        clock: Callable[[], float],
        log: logging.Logger,
        patience_s: float = 10.0,
    ) -> None:
        self._store = store
        self._reconciler = reconciler
        self._limits = limits
        self._clock = clock
        self._log = log
        self._patience_s = patience_s

    async def place(self, owner: str, name: str, ask: PlaceServer) -> ServerPlace:
        """Return the server's place, the one that it has or a new one. Raises ServerRefused."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_s
        async with self._reconciler.board.changes.listen(NODES) as listener:
            while True:
                try:
                    record, again_s = self._try(owner, name, ask), self._patience_s
                except (SlotTaken, HomeMoved) as error:
                    self._log.info("the place no longer holds: %s", error)
                    record, again_s = None, AGAIN_S
                if record is not None:
                    return self._message(record)
                if loop.time() >= until:
                    raise _slow(self._patience_s)
                await listener.wait(min(again_s, until - loop.time()))

    def end(self, owner: str, name: str) -> None:
        """Free a server's place; one that has none is left alone."""
        if self._store.end_server(owner, name):
            self._log.info("the server %r of %s gave back its place", name, owner)
            self._reconciler.slots_changed()

    def all(self) -> tuple[ServerPlace, ...]:
        homes, now = self._store.homes(), self._clock()
        servers = self._store.world().servers
        return tuple(server_message(server, homes.get(server.owner), now) for server in servers)

    def _try(self, owner: str, name: str, ask: PlaceServer) -> ServerRecord | None:
        """Return the server's place, or None when warm gangs are being ended for it."""
        known = self._store.server(owner, name)
        if known is not None:
            check_same(known, ask)
            return known
        now, world = self._clock(), self._store.world()
        nodes = self._reconciler.board.node_views()
        ledger = Ledger(nodes, world.leases, world.servers, self._store.home_of(owner))
        place = place_server(owner, ask, ledger, self._limits, now)
        if isinstance(place, MakeRoom):
            for gang_id in {task.gang_id for task in world.tasks if task.id in place.task_ids}:
                self._log.info("ending warm gang %s for a notebook server of %s", gang_id, owner)
                self._store.end_gang(gang_id)
            self._reconciler.wake()
            return None
        record = self._store.place_server(
            owner,
            name,
            (place.node, place.slots),
            until=place.until,
            shared_home=ask.shared_home,
            now=now,
            given_up_home=ledger.home if ask.new_home else None,
        )
        what = f"slots {', '.join(map(str, place.slots)) or 'none'}, image {ask.image or 'not told'}"
        self._log.info("the server %r of %s is placed on %s: %s", name, owner, place.node, what)
        self._reconciler.slots_changed()
        return record

    def _message(self, record: ServerRecord) -> ServerPlace:
        return server_message(record, self._store.home_of(record.owner), self._clock())


def _slow(waited_s: float) -> ServerRefused:
    message = f"GPUs that idle jobs kept warm were not given back within {waited_s:g} s"
    return ServerRefused("no_free_gpu", message, "Try again in a moment.")
