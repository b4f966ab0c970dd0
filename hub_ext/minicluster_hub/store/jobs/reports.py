"""Agents' reports, stored so that late and repeated reports do no harm.

`_plan` compares a report with what is stored and contains only what is newer. Most reports are bare
heartbeats with an empty plan: they never take the write lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from minicluster.wire import ArtifactReport, RankReport, RankState, SnapshotReport, TaskReport, Versions
from minicluster_hub.jobs.records import TaskRecord, TaskState
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.jobs import artifacts, environments, job_rows, snapshots
from minicluster_hub.store.rows import clean, to_gang, to_json, to_task
from minicluster_hub.store.storage import images
from minicluster_hub.store.tables.main import ATTEMPTS, EVENTS, GANGS, JOBS, RANKS, TASKS

NOTES_OF_JOB = 256
"""Most notes of a job: a large gang may report one per node, a hostile one a new one each second."""
ERRORS_CHARS = 4 << 20
"""Most characters of the errors of all ranks of an attempt, as JSON."""
# Run at each report: built once.
_NEWEST_ATTEMPT = (
    select(ATTEMPTS, JOBS.c.removed_at)
    .join(JOBS, JOBS.c.id == ATTEMPTS.c.job_id)
    .where(
        ATTEMPTS.c.id
        == select(func.max(ATTEMPTS.c.id)).where(ATTEMPTS.c.gang_id == bindparam("gang_id")).scalar_subquery()
    )
)
_TASK_LOCKED = select(TASKS).where(TASKS.c.id == bindparam("task_id")).with_for_update()
_RANKS_OF_TASK = select(RANKS.c.rank, RANKS.c.state).where(
    RANKS.c.attempt_id == bindparam("attempt_id"), RANKS.c.task_id == bindparam("task_id")
)
_STATES_OF_ATTEMPT = (
    select(RANKS.c.state)
    .distinct()
    .join(TASKS, RANKS.c.task_id == TASKS.c.id)
    .where(RANKS.c.attempt_id == bindparam("attempt_id"), TASKS.c.gang_id == bindparam("gang_id"))
)
_ORDER = {RankState.PENDING: 0, RankState.STARTED: 1, RankState.EXITED: 2}


class News(IntEnum):
    """What a report brought. AWAITED: nothing follows from it until the attempt's other ranks are as far."""

    NOTHING = 0
    AWAITED = 1
    DECISIVE = 2


@dataclass(frozen=True, slots=True)
class ReportPlan:
    """The changes of one report. `notes` are events that are not in the job's history yet."""

    attempt_id: int | None
    job_id: int | None
    task: dict[str, Any]
    ranks: tuple[RankReport, ...]
    result: dict[str, Any]
    notes: tuple[str, ...]
    snapshots: tuple[SnapshotReport, ...] = ()
    artifacts: tuple[ArtifactReport, ...] = ()
    versions: Versions | None = None

    @property
    def empty(self) -> bool:
        brought = self.snapshots or self.artifacts
        return not (self.task or self.ranks or self.result or self.notes or brought)


class ReportQueries(DatabasePart):
    """Agents' reports. Part of the store."""

    def report(self, task: TaskRecord, report: TaskReport, now: float) -> News:
        """Store what is newer in an agent's report.

        Notes go into the job's history once each. Output goes to storage.logs.
        """
        with self._database.write() as connection:
            stored = _locked(connection, task.id)
            changes = _plan(connection, stored, report)
            if changes is None or changes.empty:
                return News.NOTHING
            _carry_out(connection, task.id, changes, now)
            return News.AWAITED if _others_are_behind(connection, stored, changes) else News.DECISIVE


def _locked(connection: Connection, task_id: int) -> TaskRecord:
    """Return the task as it is now, locked until the transaction ends."""
    return to_task(connection.execute(_TASK_LOCKED, {"task_id": task_id}).one())


def _plan(connection: Connection, task: TaskRecord, report: TaskReport) -> ReportPlan | None:
    """Return what the report changes, or None when the task is over."""
    if task.state is TaskState.ENDED:
        return None
    newest = connection.execute(_NEWEST_ATTEMPT, {"gang_id": task.gang_id}).one_or_none()
    if newest is None:
        gang = to_gang(connection.execute(select(GANGS).where(GANGS.c.id == task.gang_id)).one())
        if not gang.prepared:  # Dropped from its gang as lost: its reports do not count.
            return None
        return ReportPlan(None, None, _task_changes(task, report, 0), (), {}, (), versions=report.versions)
    changes = _task_changes(task, report, newest.id)
    if report.attempt != newest.id or newest.removed_at is not None:
        return ReportPlan(None, None, changes, (), {}, (), versions=report.versions)
    result = {}
    if report.result and newest.result_sha256 is None and _leads(connection, newest.id, task):
        result = {"result_sha256": report.result.sha256, "result_size_bytes": report.result.size_bytes}
    return ReportPlan(
        newest.id,
        newest.job_id,
        changes,
        _rank_changes(connection, newest.id, task.id, report),
        result,
        _new_notes(connection, newest.job_id, report),
        snapshots.unknown(connection, newest.job_id, newest.id, report.snapshots),
        artifacts.unknown(connection, newest.job_id, report.artifacts),
        report.versions,
    )


def _leads(connection: Connection, attempt_id: int, task: TaskRecord) -> bool:
    """Whether the task has the lowest rank of those that its gang still holds."""
    query = select(RANKS.c.task_id).join(TASKS, RANKS.c.task_id == TASKS.c.id)
    living = query.where(RANKS.c.attempt_id == attempt_id, TASKS.c.gang_id == task.gang_id)
    return connection.execute(living.order_by(RANKS.c.rank).limit(1)).scalar() == task.id


def _others_are_behind(connection: Connection, task: TaskRecord, changes: ReportPlan) -> bool:
    """Whether ranks got further, without an error, but not yet all that their gang still holds."""
    more = changes.task or changes.notes or changes.snapshots or changes.artifacts
    if more or not changes.ranks or any(rank.error for rank in changes.ranks):
        return False
    of_gang = {"attempt_id": changes.attempt_id, "gang_id": task.gang_id}
    states = connection.execute(_STATES_OF_ATTEMPT, of_gang).scalars()
    reached = max(_ORDER[rank.state] for rank in changes.ranks)
    return any(_ORDER[RankState(state)] < reached for state in states)


def _carry_out(connection: Connection, task_id: int, changes: ReportPlan, now: float) -> None:
    if changes.task:
        values = dict(changes.task)
        if "state" in values:
            values["state_since"] = now
        connection.execute(update(TASKS).where(TASKS.c.id == task_id).values(values))
        if values.get("state") is TaskState.READY:
            _note_image(connection, task_id, changes.versions, now)
    if changes.ranks:
        _write_ranks(connection, changes)
    if changes.result:
        attempt = update(ATTEMPTS).where(ATTEMPTS.c.id == changes.attempt_id)
        connection.execute(attempt.values(changes.result))
    if changes.snapshots and changes.job_id and changes.attempt_id:
        snapshots.add(connection, changes.job_id, changes.attempt_id, changes.snapshots, now)
    if changes.artifacts and changes.job_id:
        artifacts.add(connection, changes.job_id, changes.artifacts, now)
    for text in changes.notes:
        values = {"job_id": changes.job_id, "at": now, "kind": "note", "text": text}
        connection.execute(insert(EVENTS).values(values))
    if changes.job_id and (changes.ranks or changes.notes or "failure" in changes.task):
        job_rows.count(connection, changes.job_id)


def _write_ranks(connection: Connection, changes: ReportPlan) -> None:
    """Write the ranks' states. All errors of an attempt are read at each tick, so long ones are cut."""
    of_attempt = RANKS.c.attempt_id == changes.attempt_id
    written = select(func.coalesce(func.sum(func.length(RANKS.c.error)), 0)).where(of_attempt)
    room = ERRORS_CHARS - connection.execute(written).scalar_one()
    for rank in changes.ranks:
        error = to_json(rank.error)
        if rank.error and len(error or "") > room:
            error = to_json(rank.error.model_copy(update={"traceback": "", "stack": None}))
        room -= len(error or "")
        values = {"state": rank.state, "exit_code": rank.exit_code, "error": error}
        connection.execute(update(RANKS).where(of_attempt, RANKS.c.rank == rank.rank).values(values))


def _note_image(connection: Connection, task_id: int, versions: Versions | None, now: float) -> None:
    """An agent that speaks runs in its image: its node has it, and the agent sees what is in it."""
    query = select(GANGS.c.image, TASKS.c.node).join(TASKS, TASKS.c.gang_id == GANGS.c.id)
    row = connection.execute(query.where(TASKS.c.id == task_id)).one()
    images.note_node(connection, row.image, row.node, now)
    if versions is not None:
        environments.note(connection, row.image, versions)


def _task_changes(task: TaskRecord, report: TaskReport, newest_attempt: int) -> dict[str, Any]:
    """Return the changes of the task's columns. States only advance."""
    changes: dict[str, Any] = {}
    if report.failure is not None and task.failure is None:
        # The stack is left out, since each request of the task reads this row.
        changes["failure"] = to_json(report.failure.model_copy(update={"stack": None}))
    # An agent cannot have cleaned up an attempt that it never had.
    cleaned_up = min(report.cleared, newest_attempt)
    if cleaned_up < task.cleaned_up_attempt_id:
        return changes  # An older report that arrived late: its address is old, too.
    if cleaned_up > task.cleaned_up_attempt_id:
        changes["cleared"] = cleaned_up
    if report.ready and task.state in (TaskState.NEW, TaskState.STARTED):
        changes["state"] = TaskState.READY
    if report.ready and clean(report.address) != task.address:
        changes["address"] = clean(report.address)
    if report.ready and report.store_port not in (None, task.store_port):
        changes["store_port"] = report.store_port
    return changes


def _rank_changes(
    connection: Connection, attempt_id: int, task_id: int, report: TaskReport
) -> tuple[RankReport, ...]:
    """Return the ranks of this task that are further than stored; EXITED is final."""
    if not report.ranks:
        return ()
    of_task = {"attempt_id": attempt_id, "task_id": task_id}
    stored = {row.rank: RankState(row.state) for row in connection.execute(_RANKS_OF_TASK, of_task)}
    return tuple(
        rank
        for rank in report.ranks
        if rank.rank in stored and _ORDER[rank.state] > _ORDER[stored[rank.rank]]
    )


def _new_notes(connection: Connection, job_id: int, report: TaskReport) -> tuple[str, ...]:
    """Return the notes that are not in the job's history yet, NOTES_OF_JOB in all at most."""
    if not report.notes:
        return ()
    notes = dict.fromkeys(clean(note) for note in report.notes)
    of_job = (EVENTS.c.job_id == job_id, EVENTS.c.kind == "note")
    known = set(connection.execute(select(EVENTS.c.text).where(*of_job, EVENTS.c.text.in_(notes))).scalars())
    new = [note for note in notes if note not in known]
    if not new:
        return ()
    room = NOTES_OF_JOB - connection.execute(select(func.count()).where(*of_job)).scalar_one()
    return tuple(new[: max(0, room)])
