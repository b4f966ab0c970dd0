"""Placements of notebook servers with the slots that they hold, and the nodes of homes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.errors import HomeMoved, SlotTaken
from minicluster_hub.store.jobs import gangs
from minicluster_hub.store.rows import add_row, clean, lease_rows, slots_to_json, to_server
from minicluster_hub.store.tables.main import HOMES, LEASES, SERVERS


class ServerQueries(DatabasePart):
    """Notebook servers' placements and homes. Part of the store."""

    def place_server(
        self,
        owner: str,
        name: str,
        place: tuple[str, tuple[int, ...]],
        *,
        until: float | None,
        shared_home: bool,
        now: float,
        given_up_home: str | None = None,
    ) -> ServerRecord:
        """Store a server's placement and lease its slots; the first node is also where its home stays.

        given_up_home: the node of a former home, which an empty one replaces.
        Raises SlotTaken (a slot is held, or the server has a place already) and HomeMoved, with
        nothing changed.
        """
        try:
            with self._database.write() as connection:
                if not shared_home:
                    _claim_home(connection, owner, place[0], given_up_home)
                return _add(connection, owner, name, place, until, now)
        except IntegrityError as error:
            with self._database.read() as connection:
                taken = gangs.held(connection, [place])
            raise SlotTaken(f"server {name!r} of {owner} cannot be placed", taken) from error

    def end_server(self, server_id: int) -> bool:
        """Free a server's place and its slots; return whether it was there."""
        with self._database.write() as connection:
            connection.execute(delete(LEASES).where(LEASES.c.server_id == server_id))
            return connection.execute(delete(SERVERS).where(SERVERS.c.id == server_id)).rowcount > 0

    def server(self, owner: str, name: str) -> ServerRecord | None:
        query = select(SERVERS).where(SERVERS.c.owner == clean(owner), SERVERS.c.name == clean(name))
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else to_server(row)

    def homes(self) -> dict[str, str]:
        """Return the node of each user's home."""
        with self._database.read() as connection:
            return {row.owner: row.node for row in connection.execute(select(HOMES))}

    def home_of(self, owner: str) -> str | None:
        """Return the node that a user's home is on, None if it has none yet."""
        with self._database.read() as connection:
            return _home_of(connection, owner)


def _add(
    connection: Connection,
    owner: str,
    name: str,
    place: tuple[str, tuple[int, ...]],
    until: float | None,
    now: float,
) -> ServerRecord:
    """Raises IntegrityError when a slot is held, or when the server has a place."""
    node, slots = place
    values = {
        "owner": clean(owner),
        "name": clean(name),
        "node": node,
        "slots": slots_to_json(slots),
        "until": until,
        "created_at": now,
    }
    server_id = add_row(connection, SERVERS, values)
    # In the order of all leases: a server and a job that want the same slots then cannot deadlock.
    rows = lease_rows(node, slots, server_id=server_id, owner=clean(owner), warm=False)
    if rows:
        connection.execute(insert(LEASES), rows)
    return to_server(connection.execute(select(SERVERS).where(SERVERS.c.id == server_id)).one())


def _claim_home(connection: Connection, owner: str, node: str, given_up: str | None) -> None:
    """Store the node of a home. given_up: the node of a former home, which it replaces.

    Raises HomeMoved when it is elsewhere, IntegrityError when it was made just now.
    """
    home = _home_of(connection, owner)
    if home is not None and home == given_up:
        connection.execute(update(HOMES).where(HOMES.c.owner == clean(owner)).values(node=node))
        return
    if home is None:
        connection.execute(insert(HOMES).values({"owner": clean(owner), "node": node}))
    elif home != node:
        raise HomeMoved(owner, home)


def _home_of(connection: Connection, owner: str) -> str | None:
    return connection.execute(select(HOMES.c.node).where(HOMES.c.owner == clean(owner))).scalar_one_or_none()


# Idle GPUs of notebook servers: whose owners were warned, and which are to be reclaimed.


class IdleServerQueries(DatabasePart):
    """One transaction per method. A server that has ended is left alone."""

    def warned(self, server_id: int, at: float | None) -> None:
        """Store when the owner was warned; None: the GPUs are in use again."""
        self._set(server_id, warned_at=at)

    def reclaim(self, server_id: int, now: float) -> None:
        """Record that the GPUs are reclaimed. Their slots stay leased until `freed`."""
        self._set(server_id, reclaimed_at=now)

    def freed(self, server_id: int) -> None:
        """Free the slots: the engine has taken the GPUs back."""
        with self._database.write() as connection:
            connection.execute(delete(LEASES).where(LEASES.c.server_id == server_id))

    def held(self, server_id: int, gpus: Sequence[str]) -> None:
        """Store the ids of the GPUs that a server sees."""
        self._set(server_id, gpus=json.dumps(list(gpus)))

    def again(
        self, server: ServerRecord, slots: tuple[int, ...], until: float | None, now: float
    ) -> ServerRecord:
        """Give slots to a server whose slots were reclaimed. Raises SlotTaken, with nothing changed."""
        leases = lease_rows(server.node, slots, server_id=server.id, owner=server.owner, warm=False)
        values = {"slots": slots_to_json(slots), "until": until, "created_at": now}
        try:
            with self._database.write() as connection:
                connection.execute(insert(LEASES), leases)
                mine = SERVERS.c.id == server.id
                values |= {"warned_at": None, "reclaimed_at": None}
                connection.execute(update(SERVERS).where(mine).values(values))
                return to_server(connection.execute(select(SERVERS).where(mine)).one())
        except IntegrityError as error:
            raise SlotTaken(f"server {server.name!r} of {server.owner} cannot have GPUs again", ()) from error

    def _set(self, server_id: int, **values: float | str | None) -> None:
        with self._database.write() as connection:
            connection.execute(update(SERVERS).where(SERVERS.c.id == server_id).values(**values))
