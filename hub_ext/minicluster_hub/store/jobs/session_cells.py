"""The cells of sessions: one transaction per method."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import bindparam, case, func, insert, select, update

from minicluster.wire import JobError
from minicluster.wire.sessions import CellBody, CellEnding, CellState, CellSubmit
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.rows import AnyRow, clean, to_json
from minicluster_hub.store.tables.sessions import SESSION_CELLS as CELLS

# Run for each cell of a session: built once.
_OF_JOB = CELLS.c.job_id == bindparam("of_job")
_CELL = select(CELLS).where(_OF_JOB, CELLS.c.number == bindparam("at"))
_OF_KEY = select(CELLS).where(_OF_JOB, CELLS.c.idempotency_key == bindparam("key"))
_NEWEST = select(CELLS).where(_OF_JOB).order_by(CELLS.c.number.desc()).limit(1)
_LAST = select(func.coalesce(func.max(CELLS.c.number), 0)).where(_OF_JOB)
_UNFINISHED = case((CELLS.c.state.in_((CellState.FAILED, CellState.INTERRUPTED)), 1), else_=0)
_FORMER = select(
    func.coalesce(func.sum(CELLS.c.breaks_group), 0), func.coalesce(func.sum(_UNFINISHED), 0)
).where(_OF_JOB)
_ADD = insert(CELLS)
_END = update(CELLS).where(_OF_JOB, CELLS.c.number == bindparam("at"), CELLS.c.ended_at.is_(None))


@dataclass(frozen=True, slots=True)
class CellRecord:
    """attempt, output: see the table. body: None once the cell is over."""

    job_id: int
    number: int
    attempt: int
    state: CellState
    body: CellBody | None
    error: JobError | None
    ending: CellEnding
    output: Mapping[str, int]
    submitted_at: float
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class FormerCells:
    """How many of a session's cells broke the process group, and how many failed or were interrupted."""

    broke_group: int = 0
    unfinished: int = 0


class SessionCellQueries(DatabasePart):
    """Part of the store."""

    def submit(
        self, job_id: int, attempt: int, request: CellSubmit, output: Mapping[str, int], now: float
    ) -> tuple[CellRecord, bool]:
        """Return the session's cell with this key, and whether this call made it."""
        key, body = clean(request.idempotency_key), _body_of(request)
        with self._database.write() as connection:
            known = connection.execute(_OF_KEY, {"of_job": job_id, "key": key}).one_or_none()
            if known is not None:
                return _to_cell(known), False
            number = connection.execute(_LAST, {"of_job": job_id}).scalar_one() + 1
            values = {
                "job_id": job_id,
                "number": number,
                "idempotency_key": key,
                "attempt": attempt,
                "body": to_json(body),
                "state": CellState.RUNNING,
                "output": json.dumps(dict(output)),
                "breaks_group": 0,
                "submitted_at": now,
            }
            connection.execute(_ADD, values)
        running, ending = CellState.RUNNING, CellEnding()
        return CellRecord(job_id, number, attempt, running, body, None, ending, output, now, None), True

    def of_key(self, job_id: int, key: str) -> CellRecord | None:
        """Return the session's cell with this idempotency key."""
        with self._database.read() as connection:
            row = connection.execute(_OF_KEY, {"of_job": job_id, "key": clean(key)}).one_or_none()
        return None if row is None else _to_cell(row)

    def cell(self, job_id: int, number: int) -> CellRecord | None:
        with self._database.read() as connection:
            row = connection.execute(_CELL, {"of_job": job_id, "at": number}).one_or_none()
        return None if row is None else _to_cell(row)

    def newest(self, job_id: int) -> tuple[CellRecord | None, FormerCells]:
        """Return a session's newest cell, and what is counted of its cells so far."""
        with self._database.read() as connection:
            row = connection.execute(_NEWEST, {"of_job": job_id}).one_or_none()
            former = FormerCells(*connection.execute(_FORMER, {"of_job": job_id}).one())
        return (None if row is None else _to_cell(row)), former

    def end(
        self,
        cell: CellRecord,
        state: CellState,
        now: float,
        *,
        error: JobError | None = None,
        ending: CellEnding,
        breaks_group: bool = False,
    ) -> None:
        """Set how a cell ended, unless that is known already."""
        values = {
            "state": state,
            "error": to_json(error),
            "outcome": to_json(ending),
            "body": None,
            "breaks_group": int(breaks_group),
            "ended_at": now,
        }
        with self._database.write() as connection:
            connection.execute(_END.values(values), {"of_job": cell.job_id, "at": cell.number})


def _body_of(request: CellSubmit) -> CellBody:
    return CellBody.model_construct(
        payload=request.payload, payload_sha256=request.payload_sha256, parts=request.parts
    )


def _to_cell(row: AnyRow) -> CellRecord:
    return CellRecord(
        job_id=row.job_id,
        number=row.number,
        attempt=row.attempt,
        state=CellState(row.state),
        body=None if row.body is None else CellBody.model_validate_json(row.body),
        error=None if row.error is None else JobError.model_validate_json(row.error),
        ending=CellEnding() if row.outcome is None else CellEnding.model_validate_json(row.outcome),
        output=json.loads(row.output),
        submitted_at=row.submitted_at,
        ended_at=row.ended_at,
    )
