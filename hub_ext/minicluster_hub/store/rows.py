"""From the tables' rows to records and back: the only place that knows both forms."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Row, Table, insert

from minicluster.wire import BlobInfo, ErrorKind, JobError, JobSpec, JobState, RankState
from minicluster_hub.jobs.records import (
    EventRecord,
    GangRecord,
    GangTarget,
    JobRecord,
    Lease,
    RankRecord,
    ServerRecord,
    TaskRecord,
    TaskState,
)

AnyRow = Row[Any]
_NO_SPEC = JobSpec(payload_sha256="0" * 64)
"""Stands in for one that cannot be read."""


def clean(text: str) -> str:
    """Return text that both databases take: no NUL, no lone surrogate."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def add_row(connection: Connection, table: Table, values: dict[str, Any]) -> int:
    """Insert a row and return the id that the database gave it."""
    key = connection.execute(insert(table).values(values)).inserted_primary_key
    assert key is not None  # noqa: S101
    return key[0]


def to_json(message: BaseModel | None) -> str | None:
    return None if message is None else message.model_dump_json()


def slots_to_json(slots: tuple[int, ...]) -> str:
    return json.dumps(list(slots))


def to_job(row: AnyRow) -> JobRecord:
    """Return a job. One row that cannot be read, of another release or damaged, must not hide all others."""
    spec, unreadable = _spec(row.spec)
    return JobRecord(
        id=row.id,
        owner=row.owner,
        spec=spec,
        unreadable=unreadable,
        state=JobState(row.state),
        reason=row.reason,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        state_since=row.state_since,
        attempts=row.attempts,
        attempt_id=row.attempt_id,
        gang_id=row.gang_id,
        world_size=row.world_size,
        error=_error(row.error),
        result=_blob(row.result_sha256, row.result_size_bytes),
        losses=row.losses,
        data_attempt_id=row.data_attempt_id,
        removed_at=row.removed_at,
    )


def to_gang(row: AnyRow) -> GangRecord:
    return GangRecord(
        id=row.id,
        owner=row.owner,
        target=GangTarget(row.target),
        job_id=row.job_id,
        slots_per_node=row.slots_per_node,
        created_at=row.created_at,
        idle_since=row.idle_since,
        image=row.image,
        shm_bytes=row.shm_bytes,
    )


def to_task(row: AnyRow) -> TaskRecord:
    """Return a row's task. One whose slots cannot be read has failed, which ends its gang and frees them."""
    mapping = row._mapping  # `index` is a method of rows, so that column has no attribute
    slots, unreadable = _slots(row.slots)
    return TaskRecord(
        id=row.id,
        gang_id=row.gang_id,
        index=mapping["index"],
        node=row.node,
        slots=slots,
        state=TaskState(row.state),
        token_hash=row.token_hash,
        address=row.address,
        store_port=row.store_port,
        cleared=row.cleared,
        failure=_error(row.failure) or unreadable,
        state_since=row.state_since,
    )


def to_rank(row: AnyRow) -> RankRecord:
    return RankRecord(
        attempt_id=row.attempt_id,
        rank=row.rank,
        task_id=row.task_id,
        state=RankState(row.state),
        exit_code=row.exit_code,
        error=_error(row.error),
        joined=row.joined,
    )


def to_lease(row: AnyRow) -> Lease:
    return Lease(
        node=row.node,
        slot=row.slot,
        task_id=row.task_id,
        job_id=row.job_id,
        owner=row.owner,
        warm=row.warm,
        server_id=row.server_id,
    )


def to_server(row: AnyRow) -> ServerRecord:
    return ServerRecord(
        id=row.id,
        owner=row.owner,
        name=row.name,
        node=row.node,
        slots=_slots(row.slots)[0],
        until=row.until,
        created_at=row.created_at,
        gpus=_list(row.gpus) or (),
        warned_at=row.warned_at,
        reclaimed_at=row.reclaimed_at,
    )


def to_event(row: AnyRow) -> EventRecord:
    return EventRecord(id=row.id, job_id=row.job_id, at=row.at, kind=row.kind, text=row.text)


def _spec(text: str) -> tuple[JobSpec, str]:
    """Return a job's spec; one that cannot be read: what stands in for it, and why."""
    try:
        return JobSpec.model_validate_json(text), ""
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        return _NO_SPEC, f"{where}: {first['msg']}"


def _slots(text: str) -> tuple[tuple[int, ...], JobError | None]:
    slots = _list(text)
    if slots is not None and all(type(slot) is int for slot in slots):
        return slots, None
    return (), JobError(kind=ErrorKind.START, message="the record of this task's slots cannot be read")


def _list(text: str) -> tuple[Any, ...] | None:
    """Return a list out of JSON, None if it is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return tuple(found) if isinstance(found, list) else None


def _error(text: str | None) -> JobError | None:
    try:
        return None if text is None else JobError.model_validate_json(text)
    except ValidationError:
        return JobError(kind=ErrorKind.LOST, message="the record of what went wrong cannot be read")


def _blob(sha256: str | None, size_bytes: int | None) -> BlobInfo | None:
    return None if sha256 is None or size_bytes is None else BlobInfo(sha256=sha256, size_bytes=size_bytes)
