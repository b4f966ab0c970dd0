"""Idle GPUs of notebook servers: whose owners know, and which are to go back."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.store.database import Database
from minicluster_hub.store.errors import SlotTaken
from minicluster_hub.store.rows import slots_to_json, to_server
from minicluster_hub.store.tables.main import LEASES, SERVERS


class IdleServers:
    """What the service keeps of them: one transaction per method. A server that has ended is left alone."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def warned(self, server_id: int, at: float | None) -> None:
        """Keep when the owner was told; None: the GPUs are in use again."""
        self._set(server_id, warned_at=at)

    def reclaim(self, server_id: int, now: float) -> None:
        """Want the GPUs back. Their slots stay held until `freed`."""
        self._set(server_id, reclaimed_at=now)

    def freed(self, server_id: int) -> None:
        """Free the slots: the engine has taken the GPUs back."""
        with self._database.write() as connection:
            connection.execute(delete(LEASES).where(LEASES.c.server_id == server_id))

    def held(self, server_id: int, gpus: Sequence[str]) -> None:
        """Keep which GPUs a server sees."""
        self._set(server_id, gpus=json.dumps(list(gpus)))

    def again(
        self, server: ServerRecord, slots: tuple[int, ...], until: float | None, now: float
    ) -> ServerRecord:
        """Give slots to a server that gave its own back. Raises SlotTaken, with nothing changed."""
        lease = {"node": server.node, "server_id": server.id, "owner": server.owner, "warm": False}
        values = {"slots": slots_to_json(slots), "until": until, "created_at": now}
        try:
            with self._database.write() as connection:
                connection.execute(insert(LEASES), [{**lease, "slot": slot} for slot in sorted(slots)])
                mine = SERVERS.c.id == server.id
                values |= {"warned_at": None, "reclaimed_at": None}
                connection.execute(update(SERVERS).where(mine).values(values))
                return to_server(connection.execute(select(SERVERS).where(mine)).one())
        except IntegrityError as error:
            raise SlotTaken(f"server {server.name!r} of {server.owner} cannot have GPUs again", ()) from error

    def _set(self, server_id: int, **values: float | str | None) -> None:
        with self._database.write() as connection:
            connection.execute(update(SERVERS).where(SERVERS.c.id == server_id).values(**values))
