"""Everything that is not over, read in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TypeVar

from sqlalchemy import Connection, func, or_, select

from minicluster_hub.jobs.records import JobRecord, Lease, RankRecord, StoredState, TaskRecord
from minicluster_hub.store.database import Database, DatabasePart
from minicluster_hub.store.jobs import snapshots
from minicluster_hub.store.jobs.gangs import LIVE_STATES
from minicluster_hub.store.jobs.jobs import OPEN_STATES, list_by_id
from minicluster_hub.store.rows import AnyRow, to_gang, to_leases, to_rank, to_server, to_task
from minicluster_hub.store.storage import images
from minicluster_hub.store.tables.main import GANGS, JOBS, LEASES, RANKS, SERVERS, TASKS

_Record = TypeVar("_Record")
# A spec may have 100 KB, and one user may have 200 open jobs. So specs are read only for changed rows.
_BRIEF = (*(one for one in JOBS.c if one is not JOBS.c.spec), func.length(JOBS.c.spec).label("spec_chars"))
_OPEN_JOBS = select(*_BRIEF).where(JOBS.c.state.in_(OPEN_STATES)).order_by(JOBS.c.id)
_WITH_LIVE_TASKS = GANGS.c.id.in_(select(TASKS.c.gang_id).where(TASKS.c.state.in_(LIVE_STATES)))
# A gang whose tasks have all ended still matters to the job that is bound to it.
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
_LEASES = select(*(LEASES.c[field.name] for field in fields(Lease))).order_by(LEASES.c.node, LEASES.c.slot)
_SERVERS = select(SERVERS).order_by(SERVERS.c.id)


class OpenStateQueries(DatabasePart):
    """Part of the store. At each tick a row that has not changed is not parsed again.

    It caches the records of the last read, and nothing of jobs that are over.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._jobs: dict[AnyRow, JobRecord] = {}
        self._tasks: dict[AnyRow, TaskRecord] = {}
        self._ranks: dict[AnyRow, RankRecord] = {}

    def open_state(self) -> StoredState:
        """Return all open jobs, the gangs with a living task, their tasks, ranks and all leases.

        Jobs and gangs come oldest first, tasks by gang and index, ranks in order.
        """
        with self._database.read() as connection:
            # Another thread may read at the same time. So each thread uses only what it has read itself.
            self._jobs = jobs = self._open_jobs(connection, self._jobs)
            self._tasks = tasks = _known(connection.execute(_TASKS), self._tasks, to_task)
            self._ranks = ranks = _known(connection.execute(_RANKS), self._ranks, to_rank)
            return StoredState(
                jobs=tuple(jobs.values()),
                gangs=tuple(map(to_gang, connection.execute(_GANGS))),
                tasks=tuple(tasks.values()),
                ranks=tuple(ranks.values()),
                leases=tuple(to_leases(connection.execute(_LEASES))),
                servers=tuple(map(to_server, connection.execute(_SERVERS))),
                snapshots=snapshots.of_open_jobs(connection),
                refused_images=images.refused(connection),
            )

    @staticmethod
    def _open_jobs(connection: Connection, before: Mapping[AnyRow, JobRecord]) -> dict[AnyRow, JobRecord]:
        known = [(row, before.get(row)) for row in connection.execute(_OPEN_JOBS)]
        changed = list_by_id(connection, [row.id for row, job in known if job is None])
        read = {job.id: job for job in changed}
        return {row: job or read[row.id] for row, job in known}


def _known(
    rows: Iterable[AnyRow], before: Mapping[AnyRow, _Record], parse: Callable[[AnyRow], _Record]
) -> dict[AnyRow, _Record]:
    """Return the records by their rows. No row occurs twice."""
    return {row: before.get(row) or parse(row) for row in rows}
