"""The size of a job's rows: counted in its owner's quota, shrunk once the job is removed, deleted at last.

The rows of tasks that a running gang lost stay: each records a start on a node.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    ScalarSelect,
    Select,
    Update,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from minicluster.wire import JobError, JobSpec, JobSubmit, RunOrigin, StorageKind, shortened
from minicluster_hub.jobs.records import TaskState
from minicluster_hub.store.rows import to_json
from minicluster_hub.store.tables.main import ARTIFACTS, ATTEMPTS, EVENTS, GANGS, JOBS, RANKS, TASKS
from minicluster_hub.store.tables.runs import RUN_METRICS, RUN_TAGS, RUNS
from minicluster_hub.store.tables.storage import JOB_FILES

MOST_REMOVED = 1000
"""Removed jobs of one owner whose rows are kept. They count in nobody's quota."""
_DROPPED_AT_ONCE = 100
_LINES_LEFT = 20
_ORIGIN_CHARS = 20_000
_SOURCE_CHARS = 10_000
_TRANSIENT = ("note", "stalled")


class _Octets(FunctionElement[int]):
    """How many bytes a text has in UTF-8. SQLite of Debian 12 has no function of PostgreSQL's name."""

    inherit_cache = True
    type = Integer()


@compiles(_Octets)
def _octets(element: _Octets, compiler: Any, **more: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **more)})"


@compiles(_Octets, "sqlite")
def _octets_of_sqlite(element: _Octets, compiler: Any, **more: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **more)} AS BLOB))"


def row_bytes(request: JobSubmit) -> int:
    """Return the approximate size of a new job's rows, in bytes."""
    return len(request.model_dump_json(exclude_none=True).encode())


def add(connection: Connection, job_id: int, owner: str, request: JobSubmit) -> None:
    """Count a new job's row in its owner's quota."""
    row = {"job_id": job_id, "kind": StorageKind.CELLS, "sha256": "", "owner": owner}
    connection.execute(insert(JOB_FILES).values(**row, size_bytes=row_bytes(request)))


def count(connection: Connection, job_id: int) -> None:
    """Count a job's rows again, with its history and its errors. A removed job has no count."""
    connection.execute(_COUNT, {"of_job": job_id})


def _counted() -> Update:
    job_id = bindparam("of_job")
    gangs = select(ATTEMPTS.c.gang_id).where(ATTEMPTS.c.job_id == job_id)
    errors = select(RANKS.c.error).join(ATTEMPTS, ATTEMPTS.c.id == RANKS.c.attempt_id)
    of_job = (
        select(_Octets(JOBS.c.spec) + func.coalesce(_Octets(JOBS.c.error), 0))
        .where(JOBS.c.id == job_id)
        .scalar_subquery()
    )
    size = (
        of_job
        + _bytes(RUNS.c.origin, select(RUNS.c.origin).where(RUNS.c.job_id == job_id))
        + _bytes(RUNS.c.note, select(RUNS.c.note).where(RUNS.c.job_id == job_id))
        + _bytes(EVENTS.c.text, select(EVENTS.c.text).where(EVENTS.c.job_id == job_id))
        + _bytes(RANKS.c.error, errors.where(ATTEMPTS.c.job_id == job_id))
        + _bytes(TASKS.c.failure, select(TASKS.c.failure).where(TASKS.c.gang_id.in_(gangs)))
    )
    row = (JOB_FILES.c.job_id == job_id, JOB_FILES.c.kind == StorageKind.CELLS, JOB_FILES.c.sha256 == "")
    return update(JOB_FILES).where(*row).values(size_bytes=size)


def _bytes(column: ColumnElement[Any], rows: Select[Any]) -> ScalarSelect[int]:
    return rows.with_only_columns(func.coalesce(func.sum(_Octets(column)), 0)).scalar_subquery()


_COUNT = _counted()
"""Runs at each report with news: built once."""


def shrink(connection: Connection, job_ids: Collection[int]) -> None:
    """Shrink removed jobs to what lists show and the last events of their histories."""
    query = select(JOBS.c.id, JOBS.c.attempt_id, JOBS.c.spec, JOBS.c.error).where(JOBS.c.id.in_(job_ids))
    for row in connection.execute(query).all():
        spec = JobSpec.model_validate_json(row.spec).model_copy(update={"env": {}, "parts": ()})
        values = {"spec": to_json(spec), "error": _brief(row.error)}
        connection.execute(update(JOBS).where(JOBS.c.id == row.id).values(values))
        _shrink_run(connection, row.id)
        _shrink_attempts(connection, row.id, row.attempt_id)
        _shrink_history(connection, row.id)


def _brief(error: str | None) -> str | None:
    """Return an error without its long parts."""
    if error is None:
        return None
    return to_json(JobError.model_validate_json(error).model_copy(update={"traceback": "", "stack": None}))


def _shrink_run(connection: Connection, job_id: int) -> None:
    """Keep how a run was made, without the middle of a long cell."""
    origin = connection.execute(select(RUNS.c.origin).where(RUNS.c.job_id == job_id)).scalar()
    if origin is not None and len(origin) > _ORIGIN_CHARS:
        read = RunOrigin.model_validate_json(origin)
        less = read.model_copy(update={"source": shortened(read.source, _SOURCE_CHARS), "names": ()})
        text = less.model_dump_json(exclude_defaults=True)
        connection.execute(update(RUNS).where(RUNS.c.job_id == job_id).values(origin=text))


def _shrink_attempts(connection: Connection, job_id: int, newest: int | None) -> None:
    """Delete all ranks but those of the newest attempt, which show the nodes that it ran on."""
    mine = RANKS.c.attempt_id.in_(select(ATTEMPTS.c.id).where(ATTEMPTS.c.job_id == job_id))
    gangs = select(ATTEMPTS.c.gang_id).where(ATTEMPTS.c.job_id == job_id)
    over = (TASKS.c.gang_id.in_(gangs), TASKS.c.state == TaskState.ENDED)
    connection.execute(delete(RANKS).where(mine, RANKS.c.attempt_id != newest))
    connection.execute(update(RANKS).where(mine).values(error=None))
    connection.execute(update(TASKS).where(*over).values(failure=None))


def _shrink_history(connection: Connection, job_id: int) -> None:
    mine = EVENTS.c.job_id == job_id
    connection.execute(delete(EVENTS).where(mine, EVENTS.c.kind.in_(_TRANSIENT)))
    last = select(EVENTS.c.id).where(mine).order_by(EVENTS.c.id.desc()).offset(_LINES_LEFT).limit(1)
    edge = connection.execute(last).scalar()
    if edge is not None:
        connection.execute(delete(EVENTS).where(mine, EVENTS.c.id <= edge))


def drop_oldest(connection: Connection, owner: str) -> None:
    """Delete an owner's oldest removed jobs beyond MOST_REMOVED, some at a time."""
    keeps = (exists().where(table.c.job_id == JOBS.c.id) for table in (JOB_FILES, ARTIFACTS))
    removed = (JOBS.c.owner == owner, JOBS.c.removed_at.is_not(None), *(~one for one in keeps))
    newest_first = select(JOBS.c.id).where(*removed).order_by(JOBS.c.removed_at.desc(), JOBS.c.id.desc())
    surplus = newest_first.offset(MOST_REMOVED).limit(_DROPPED_AT_ONCE)
    if job_ids := list(connection.execute(surplus).scalars()):
        _drop(connection, job_ids)


def _drop(connection: Connection, job_ids: Sequence[int]) -> None:
    query = select(ATTEMPTS.c.id, ATTEMPTS.c.gang_id).where(ATTEMPTS.c.job_id.in_(job_ids))
    attempts = connection.execute(query).all()
    connection.execute(delete(RANKS).where(RANKS.c.attempt_id.in_([row.id for row in attempts])))
    for table in (ATTEMPTS, EVENTS, RUN_METRICS, RUN_TAGS, RUNS):
        connection.execute(delete(table).where(table.c.job_id.in_(job_ids)))
    _drop_gangs(connection, {row.gang_id for row in attempts})
    connection.execute(delete(JOBS).where(JOBS.c.id.in_(job_ids)))


def _drop_gangs(connection: Connection, gang_ids: Collection[int]) -> None:
    """Delete those of these gangs that are over and that no other job ran on."""
    used = exists().where(ATTEMPTS.c.gang_id == GANGS.c.id)
    living = exists().where(TASKS.c.gang_id == GANGS.c.id, TASKS.c.state != TaskState.ENDED)
    over = select(GANGS.c.id).where(GANGS.c.id.in_(gang_ids), GANGS.c.job_id.is_(None), ~used, ~living)
    found = list(connection.execute(over).scalars())
    ranks = exists().where(RANKS.c.task_id == TASKS.c.id)
    tasks = exists().where(TASKS.c.gang_id == GANGS.c.id)
    connection.execute(delete(TASKS).where(TASKS.c.gang_id.in_(found), ~ranks))
    connection.execute(delete(GANGS).where(GANGS.c.id.in_(found), ~tasks))
