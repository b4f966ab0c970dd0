"""All that is not over, read in one transaction."""

from __future__ import annotations

from sqlalchemy import Connection, or_, select

from minicluster_hub.models import World
from minicluster_hub.store import images, snapshots
from minicluster_hub.store.gangs import LIVE_STATES
from minicluster_hub.store.jobs import OPEN_STATES
from minicluster_hub.store.rows import to_gang, to_job, to_lease, to_rank, to_server, to_task
from minicluster_hub.store.tables import GANGS, JOBS, LEASES, RANKS, SERVERS, TASKS

_OPEN_JOBS = select(JOBS).where(JOBS.c.state.in_(OPEN_STATES)).order_by(JOBS.c.id)
_WITH_LIVE_TASKS = GANGS.c.id.in_(select(TASKS.c.gang_id).where(TASKS.c.state.in_(LIVE_STATES)))
# A gang whose tasks have all ended still matters to the job that it is bound to.
_LIVE = or_(GANGS.c.job_id.is_not(None), _WITH_LIVE_TASKS)
_LIVE_GANG_IDS = select(GANGS.c.id).where(_LIVE)
_GANGS = select(GANGS).where(_LIVE).order_by(GANGS.c.id)
_TASKS = select(TASKS).where(TASKS.c.gang_id.in_(_LIVE_GANG_IDS)).order_by(TASKS.c.gang_id, TASKS.c.index)
_RANKS = (
    select(RANKS)
    .join(JOBS, JOBS.c.attempt_id == RANKS.c.attempt_id)
    .where(JOBS.c.state.in_(OPEN_STATES))
    .order_by(RANKS.c.attempt_id, RANKS.c.rank)
)
_LEASES = select(LEASES).order_by(LEASES.c.node, LEASES.c.slot)
_SERVERS = select(SERVERS).order_by(SERVERS.c.id)


def read_world(connection: Connection) -> World:
    """Return the world; jobs and gangs oldest first, tasks by gang and index, ranks in order."""
    return World(
        jobs=tuple(map(to_job, connection.execute(_OPEN_JOBS))),
        gangs=tuple(map(to_gang, connection.execute(_GANGS))),
        tasks=tuple(map(to_task, connection.execute(_TASKS))),
        ranks=tuple(map(to_rank, connection.execute(_RANKS))),
        leases=tuple(map(to_lease, connection.execute(_LEASES))),
        servers=tuple(map(to_server, connection.execute(_SERVERS))),
        snapshots=snapshots.of_open_jobs(connection),
        refused_images=images.refused(connection),
    )
