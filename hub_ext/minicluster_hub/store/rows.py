"""From the tables' rows to records and back.

A record's fields have the names of its table's columns, but for two: `JobRecord.lost_attempts` is the
column `losses`, `TaskRecord.cleaned_up_attempt_id` is `cleared`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

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
from minicluster_hub.jobs.slot_numbers import in_halves, other_half, slot_of

_T = TypeVar("_T")
AnyRow = Row[Any]
AT_ONCE = 500
"""Values that one statement takes."""
_NO_SPEC = JobSpec(payload_sha256="0" * 64)
"""Takes the place of a spec that cannot be read."""


def clean(text: str) -> str:
    """Return text that both databases accept: without NUL and lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def add_row(connection: Connection, table: Table, values: dict[str, Any]) -> int:
    """Insert a row and return the id that the database gave it."""
    key = connection.execute(insert(table), values).inserted_primary_key
    assert key is not None  # noqa: S101
    return key[0]


def portions(values: Collection[_T]) -> Iterator[list[_T]]:
    """Yield the values in lists that each fit into one statement."""
    every = list(values)
    return (every[start : start + AT_ONCE] for start in range(0, len(every), AT_ONCE))


def to_json(message: BaseModel | None) -> str | None:
    return None if message is None else message.model_dump_json()


def slots_to_json(slots: tuple[int, ...]) -> str:
    return json.dumps(list(slots))


def lease_rows(node: str, slots: Iterable[int], **holder: Any) -> list[dict[str, Any]]:
    """Return the rows of the table of leases: one for each half of these slots."""
    return [{"node": node, "slot": half, **holder} for half in sorted(in_halves(slots))]


def to_leases(rows: Iterable[AnyRow]) -> Iterator[Lease]:
    """Yield the leases. rows: by node and number; both halves of a slot with one holder are one lease."""
    first: Lease | None = None
    for lease in (Lease(*row) for row in rows):
        if first is not None and lease == replace(first, slot=other_half(first.slot)):
            yield replace(first, slot=slot_of(first.slot))
            first = None
            continue
        if first is not None:
            yield first
        first = lease
    if first is not None:
        yield first


def to_job(row: AnyRow) -> JobRecord:
    """Return a job. A row that cannot be read (of another release, or damaged) must not hide all others."""
    spec, unreadable = _spec(row.spec)
    read = {"spec": spec, "state": JobState(row.state), "error": _error(row.error)}
    values = {**row._mapping, **read}
    del values["idempotency_key"]
    result = _blob(values.pop("result_sha256"), values.pop("result_size_bytes"))
    lost_attempts = values.pop("losses")
    return JobRecord(**values, lost_attempts=lost_attempts, result=result, unreadable=unreadable)


def to_gang(row: AnyRow) -> GangRecord:
    return GangRecord(**{**row._mapping, "target": GangTarget(row.target)})


def to_task(row: AnyRow) -> TaskRecord:
    """Return a task. If its slots cannot be read, it has failed: its gang ends, which frees the slots."""
    slots, unreadable = _slots(row.slots)
    failure = _error(row.failure) or unreadable
    read = {"slots": slots, "state": TaskState(row.state), "failure": failure}
    values = {**row._mapping, **read}
    cleaned_up = values.pop("cleared")
    return TaskRecord(**values, cleaned_up_attempt_id=cleaned_up)


def to_rank(row: AnyRow) -> RankRecord:
    return RankRecord(**{**row._mapping, "state": RankState(row.state), "error": _error(row.error)})


def to_server(row: AnyRow) -> ServerRecord:
    read = {"slots": _slots(row.slots)[0], "gpus": _list(row.gpus) or ()}
    return ServerRecord(**{**row._mapping, **read})


def to_event(row: AnyRow) -> EventRecord:
    return EventRecord(**row._mapping)


def _spec(text: str) -> tuple[JobSpec, str]:
    """Return a job's spec and ""; or, if it cannot be read, a spec in its place and the reason."""
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
    """Return the list that a JSON text holds, None if it holds none."""
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
