"""All that is not over, read in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from sqlalchemy import Connection, or_, select

from minicluster_hub.models import JobRecord, RankRecord, World
from minicluster_hub.store import images, snapshots
from minicluster_hub.store.gangs import LIVE_STATES
from minicluster_hub.store.jobs import OPEN_STATES
from minicluster_hub.store.rows import AnyRow, to_gang, to_job, to_lease, to_rank, to_server, to_task
from minicluster_hub.store.tables import GANGS, JOBS, LEASES, RANKS, SERVERS, TASKS

_Record = TypeVar("_Record")
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


class WorldReader:
    """Reads the world at each tick: a row that is as it was the last time is not parsed again.

    It keeps what the last world had, and nothing of jobs that are over.
    """

    def __init__(self) -> None:
        self._jobs: dict[AnyRow, JobRecord] = {}
        self._ranks: dict[AnyRow, RankRecord] = {}

    def read(self, connection: Connection) -> World:
        """Return the world; jobs and gangs oldest first, tasks by gang and index, ranks in order."""
        self._jobs = _known(connection.execute(_OPEN_JOBS), self._jobs, to_job)
        self._ranks = _known(connection.execute(_RANKS), self._ranks, to_rank)
        return _world(connection, tuple(self._jobs.values()), tuple(self._ranks.values()))


def _known(
    rows: Iterable[AnyRow], before: Mapping[AnyRow, _Record], parse: Callable[[AnyRow], _Record]
) -> dict[AnyRow, _Record]:
    """Return the records by their rows, none of which is there twice."""
    return {row: before.get(row) or parse(row) for row in rows}


def _world(connection: Connection, jobs: tuple[JobRecord, ...], ranks: tuple[RankRecord, ...]) -> World:
    return World(
        jobs=jobs,
        gangs=tuple(map(to_gang, connection.execute(_GANGS))),
        tasks=tuple(map(to_task, connection.execute(_TASKS))),
        ranks=ranks,
        leases=tuple(map(to_lease, connection.execute(_LEASES))),
        servers=tuple(map(to_server, connection.execute(_SERVERS))),
        snapshots=snapshots.of_open_jobs(connection),
        refused_images=images.refused(connection),
    )
