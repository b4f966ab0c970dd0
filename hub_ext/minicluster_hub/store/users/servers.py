"""Places of notebook servers, with the slots that they hold, and the nodes that homes are on."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.store.errors import HomeMoved
from minicluster_hub.store.rows import add_row, clean, slots_to_json, to_server
from minicluster_hub.store.tables.main import HOMES, LEASES, SERVERS


def add(
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
    rows = [
        {"node": node, "slot": slot, "server_id": server_id, "owner": clean(owner), "warm": False}
        for slot in sorted(slots)
    ]
    if rows:
        connection.execute(insert(LEASES), rows)
    return to_server(connection.execute(select(SERVERS).where(SERVERS.c.id == server_id)).one())


def end(connection: Connection, server_id: int) -> bool:
    connection.execute(delete(LEASES).where(LEASES.c.server_id == server_id))
    return connection.execute(delete(SERVERS).where(SERVERS.c.id == server_id)).rowcount > 0


def find(connection: Connection, owner: str, name: str) -> ServerRecord | None:
    query = select(SERVERS).where(SERVERS.c.owner == clean(owner), SERVERS.c.name == clean(name))
    row = connection.execute(query).one_or_none()
    return None if row is None else to_server(row)


def claim_home(connection: Connection, owner: str, node: str, given_up: str | None) -> None:
    """Keep where a home is made; `given_up` is the node of a former one, which it takes the place of.

    Raises HomeMoved when it is elsewhere, IntegrityError when it was made just now.
    """
    home = home_of(connection, owner)
    if home is not None and home == given_up:
        connection.execute(update(HOMES).where(HOMES.c.owner == clean(owner)).values(node=node))
        return
    if home is None:
        connection.execute(insert(HOMES).values({"owner": clean(owner), "node": node}))
    elif home != node:
        raise HomeMoved(owner, home)


def home_of(connection: Connection, owner: str) -> str | None:
    return connection.execute(select(HOMES.c.node).where(HOMES.c.owner == clean(owner))).scalar_one_or_none()


def homes(connection: Connection) -> dict[str, str]:
    return {row.owner: row.node for row in connection.execute(select(HOMES))}
