"""Jobs and their histories: submitting, finding, the transitions of the state machine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from minicluster.wire import JobError, JobState, JobSubmit
from minicluster_hub.jobs.records import EventRecord, GangTarget, JobRecord
from minicluster_hub.jobs.states import JobEvent, TransitionImpossible, next_state
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.errors import JobUnknown
from minicluster_hub.store.jobs import job_rows, runs
from minicluster_hub.store.rows import add_row, clean, portions, to_event, to_job, to_json
from minicluster_hub.store.storage import blobs
from minicluster_hub.store.tables.main import ATTEMPTS, EVENTS, GANGS, JOBS, LEASES
from minicluster_hub.store.users import notices

OPEN_STATES = tuple(state.value for state in JobState if not state.terminal)
_EVENTS_SHOWN = 1000
# Run many times for each job: built once.
_JOB = select(JOBS).where(JOBS.c.id == bindparam("job_id"))
_JOB_LOCKED = _JOB.with_for_update()
_SOME = JOBS.c.id.in_(bindparam("job_ids", expanding=True))
_JOBS = select(JOBS).where(_SOME).order_by(JOBS.c.id)
_STATES = select(JOBS.c.id, JOBS.c.state).where(_SOME)
_ADD_EVENT = insert(EVENTS)


class JobQueries(DatabasePart):
    """Jobs and their events. Part of the store."""

    def submit(self, owner: str, request: JobSubmit, now: float) -> tuple[JobRecord, bool]:
        """Return the job with the owner's idempotency key, and whether this call made it."""
        known = self.job_of_key(owner, request.idempotency_key)
        if known is not None:
            return known, False
        try:
            with self._database.write() as connection:
                return insert_job(connection, owner, request, now), True
        except IntegrityError:
            known = self.job_of_key(owner, request.idempotency_key)
            if known is None:
                raise
            return known, False

    def apply(
        self,
        job_id: int,
        event: JobEvent,
        now: float,
        *,
        reason: str = "",
        error: JobError | None = None,
        text: str = "",
        lost_attempts: int | None = None,
    ) -> JobRecord:
        """Apply an event to a job by the table in `states`; return the job as it is then.

        The attempt's first error is kept, and rank 0's result when the ranks succeeded. A job that
        is over, or queued again, leaves its gang warm. Raises TransitionImpossible, JobUnknown.
        """
        with self._database.write() as connection:
            job = find_known(connection, job_id, lock=True)
            values = {} if lost_attempts is None else {"losses": lost_attempts}
            apply_transition(
                connection, job, event, now, reason=reason, error=error, text=text, values=values
            )
            return find_known(connection, job_id)

    def note(self, job_id: int, kind: str, text: str, now: float) -> None:
        """Write a line of the job's history that changes no state."""
        with self._database.write() as connection:
            find_known(connection, job_id)
            add_event(connection, job_id, kind, text, now)

    def job_of_key(self, owner: str, key: str) -> JobRecord | None:
        """Return the job that the owner submitted with this idempotency key."""
        query = select(JOBS).where(JOBS.c.owner == owner, JOBS.c.idempotency_key == clean(key))
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else to_job(row)

    def count_open_jobs(self, owner: str) -> int:
        """Return how many of the owner's jobs wait or run."""
        query = select(func.count()).where(JOBS.c.owner == owner, JOBS.c.state.in_(OPEN_STATES))
        with self._database.read() as connection:
            return connection.execute(query).scalar_one()

    def job(self, job_id: int) -> JobRecord | None:
        with self._database.read() as connection:
            row = connection.execute(_JOB, {"job_id": job_id}).one_or_none()
        return None if row is None else to_job(row)

    def jobs(
        self, owner: str | None, *, open_only: bool = False, limit: int = 100, before: int | None = None
    ) -> list[JobRecord]:
        """Return jobs, the newest first. `owner` None: everyone's. before: those with a smaller id."""
        query = select(JOBS).order_by(JOBS.c.id.desc()).limit(limit)
        if owner is not None:
            query = query.where(JOBS.c.owner == owner)
        if open_only:
            query = query.where(JOBS.c.state.in_(OPEN_STATES))
        if before is not None:
            query = query.where(JOBS.c.id < before)
        with self._database.read() as connection:
            return [to_job(row) for row in connection.execute(query)]

    def jobs_by_id(self, job_ids: Collection[int]) -> list[JobRecord]:
        with self._database.read() as connection:
            return list_by_id(connection, job_ids)

    def states_by_id(self, job_ids: Collection[int]) -> dict[int, JobState]:
        """Return the states of those of these jobs that exist."""
        found: dict[int, JobState] = {}
        with self._database.read() as connection:
            for some in portions(list(job_ids)):
                rows = connection.execute(_STATES, {"job_ids": some})
                found |= {row.id: JobState(row.state) for row in rows}
        return found

    def events(self, job_id: int, after: int = 0, most: int = 1000) -> list[EventRecord]:
        """Return the first events of a job after the event `after`, in order."""
        with self._database.read() as connection:
            return list_events(connection, job_id, after, most)

    def last_event_id(self, job_id: int) -> int:
        """Return the id of the job's newest event, 0 if there is none."""
        query = select(func.max(EVENTS.c.id)).where(EVENTS.c.job_id == job_id)
        with self._database.read() as connection:
            return connection.execute(query).scalar() or 0


def insert_job(connection: Connection, owner: str, request: JobSubmit, now: float) -> JobRecord:
    """Insert a job. Raises IntegrityError when the owner's key is known."""
    values = {
        "owner": owner,
        "idempotency_key": clean(request.idempotency_key),
        "spec": to_json(request.spec),
        "state": JobState.QUEUED,
        "reason": "",
        "created_at": now,
        "state_since": now,
        "attempts": 0,
    }
    job_id = add_row(connection, JOBS, values)
    blobs.reference(connection, job_id, request.spec.blobs)
    runs.add(connection, job_id, owner, request)
    job_rows.add(connection, job_id, owner, request)
    add_event(connection, job_id, "submitted", request.spec.name, now)
    return find_known(connection, job_id)


def find_known(connection: Connection, job_id: int, *, lock: bool = False) -> JobRecord:
    """Return a job, with its row locked where the database locks rows. Raises JobUnknown."""
    row = connection.execute(_JOB_LOCKED if lock else _JOB, {"job_id": job_id}).one_or_none()
    if row is None:
        raise JobUnknown(job_id)
    return to_job(row)


def list_by_id(connection: Connection, job_ids: Collection[int]) -> list[JobRecord]:
    """Return those of these jobs that exist, many in each query."""
    found: list[JobRecord] = []
    for some in portions(sorted(job_ids)):
        found += map(to_job, connection.execute(_JOBS, {"job_ids": some}))
    return found


def add_event(connection: Connection, job_id: int, kind: str, text: str, now: float) -> None:
    values = {"job_id": job_id, "at": now, "kind": kind, "text": clean(text)}
    connection.execute(_ADD_EVENT, values)


def list_events(connection: Connection, job_id: int, after: int, most: int) -> list[EventRecord]:
    query = select(EVENTS).where(EVENTS.c.job_id == job_id, EVENTS.c.id > after).order_by(EVENTS.c.id)
    return [to_event(row) for row in connection.execute(query.limit(most))]


def apply_transition(
    connection: Connection,
    job: JobRecord,
    event: JobEvent,
    now: float,
    *,
    reason: str = "",
    error: JobError | None = None,
    text: str = "",
    values: dict[str, Any] | None = None,
) -> None:
    """Apply an event to a locked job by the table in `states`, and write the event.

    An event that leaves the state as it is (a second stop) changes nothing at all.
    Raises TransitionImpossible.
    """
    state = next_state(job.state, event)
    if state is None:
        events = [line.kind for line in list_events(connection, job.id, 0, _EVENTS_SHOWN)]
        raise TransitionImpossible(job.id, job.state, event, events)
    if state is job.state:
        return
    changes = {
        **_changes(connection, job, state, now, error),
        "state": state,
        "state_since": now,
        "reason": clean(reason),
        **(values or {}),
    }
    connection.execute(update(JOBS).where(JOBS.c.id == job.id).values(changes))
    add_event(connection, job.id, event, text or reason or (error.message if error else ""), now)
    notices.of_transition(connection, job, state, now, reason, job.error or error)
    if state.terminal:
        job_rows.count(connection, job.id)
    if state.terminal or state is JobState.QUEUED:
        # What a replica of a model runs in has the network of replicas: no cell may come there.
        end = event is JobEvent.GIVEN_UP or job.spec.serve is not None
        _release_gang(connection, job.id, now, end=end)


def _changes(
    connection: Connection, job: JobRecord, state: JobState, now: float, error: JobError | None
) -> dict[str, Any]:
    """Return what a transition changes beside the state itself."""
    changes: dict[str, Any] = {}
    if error is not None and (job.error is None or state.terminal):
        changes["error"] = to_json(error.model_copy(update={"stack": None}))
    if state is JobState.QUEUED:
        # The next attempt may get another first error. This one stays in the history.
        changes["error"] = None
    if job.state is JobState.YIELDING and state is JobState.QUEUED:
        changes["gang_id"] = None  # A preempted job does not wait for its former gang.
    if state is JobState.RUNNING and job.started_at is None:
        changes["started_at"] = now
    if state.terminal:
        changes["ended_at"] = now
    if state is JobState.SUCCEEDED:
        changes.update(_result(connection, job.attempt_id))
    return changes


def _result(connection: Connection, attempt_id: int | None) -> dict[str, Any]:
    query = select(ATTEMPTS.c.result_sha256, ATTEMPTS.c.result_size_bytes).where(ATTEMPTS.c.id == attempt_id)
    row = connection.execute(query).one_or_none()
    return {} if row is None else {"result_sha256": row[0], "result_size_bytes": row[1]}


def _release_gang(connection: Connection, job_id: int, now: float, *, end: bool) -> None:
    """Leave the job's gang warm for its owner's next job, or end it."""
    gangs = update(GANGS).where(GANGS.c.job_id == job_id)
    target = {"target": GangTarget.END} if end else {}
    connection.execute(gangs.values(job_id=None, idle_since=now, **target))
    leases = update(LEASES).where(LEASES.c.job_id == job_id)
    connection.execute(leases.values(job_id=None, warm=True))
