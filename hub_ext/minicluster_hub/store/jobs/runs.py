"""Runs: what is remembered of jobs for their owners, found by name, tag, state and metric."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    update,
)

from minicluster.wire import JobState, JobSubmit, LastValue, RunLabels, RunOrigin, StorageKind, TagCount
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.rows import clean, portions, to_job
from minicluster_hub.store.tables.main import JOBS
from minicluster_hub.store.tables.runs import RUN_METRICS, RUN_TAGS, RUNS
from minicluster_hub.store.tables.scheduling import USAGE
from minicluster_hub.store.tables.storage import JOB_FILES

SERIES = "series"
"""In the place of a hash: the row of a run's series among the files that count in its owner's quota."""
_SORTS: Mapping[str, ColumnElement[Any]] = {
    "created": JOBS.c.id,
    "name": RUNS.c.name,
    "state": JOBS.c.state,
    "duration": JOBS.c.ended_at - JOBS.c.started_at,
    "owner": JOBS.c.owner,
}


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs are wanted, and in which order. owner None: everyone's.

    search: part of the name, the note, or a tag. sort: a key of _SORTS or the name of a metric.
    """

    owner: str | None
    search: str = ""
    states: tuple[JobState, ...] = ()
    tag: str = ""
    favourite: bool = False
    sort: str = "created"
    descending: bool = True
    limit: int = 100
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is remembered of a job besides its state. gpus: that its newest attempt held."""

    job_id: int
    note: str = ""
    favourite: bool = False
    origin: RunOrigin = RunOrigin()  # noqa: RUF009 - frozen
    tags: tuple[str, ...] = ()
    gpus: int = 0
    metrics: Mapping[str, LastValue] = field(default_factory=dict)


class RunQueries(DatabasePart):
    """One transaction per method."""

    def page(self, query: RunQuery) -> tuple[list[JobRecord], int]:
        """Return the jobs of a page, and how many there are on all pages."""
        wanted = select(JOBS).where(*_conditions(query))
        if query.search or query.favourite or query.sort == "name":
            wanted = wanted.join(RUNS, RUNS.c.job_id == JOBS.c.id)
        with self._database.read() as connection:
            count = wanted.with_only_columns(func.count(JOBS.c.id), maintain_column_froms=True)
            total = connection.execute(count).scalar_one()
            page = _sorted(wanted, query).limit(query.limit).offset(query.offset)
            return [to_job(row) for row in connection.execute(page)], total

    def records(self, job_ids: Collection[int], *, origins: bool = False) -> dict[int, RunRecord]:
        """Return what is remembered of these jobs, by id. origins: also how they were submitted."""
        found: dict[int, RunRecord] = {}
        with self._database.read() as connection:
            for some in portions(job_ids):
                found |= _records(connection, some, origins)
        return found

    def unknown(self, job_ids: Collection[int]) -> list[int]:
        """Return those of these ids that no job has. They must fit into one statement."""
        with self._database.read() as connection:
            query = select(RUNS.c.job_id).where(RUNS.c.job_id.in_(job_ids))
            return sorted({*job_ids} - {*connection.execute(query).scalars()})

    def label(self, job_id: int, labels: RunLabels) -> None:
        """Change what the owner wrote about a run. None stays as it is."""
        values: dict[str, Any] = {}
        if labels.note is not None:
            values["note"] = clean(labels.note)
        if labels.favourite is not None:
            values["favourite"] = labels.favourite
        with self._database.write() as connection:
            if values:
                connection.execute(update(RUNS).where(RUNS.c.job_id == job_id).values(**values))
            if labels.tags is not None:
                connection.execute(delete(RUN_TAGS).where(RUN_TAGS.c.job_id == job_id))
                _add_tags(connection, job_id, labels.tags)

    def tags(self, owner: str | None, most: int) -> list[TagCount]:
        """Return the tags of an owner's runs, the most used first."""
        runs = func.count().label("runs")
        query = select(RUN_TAGS.c.tag, runs).join(RUNS, RUNS.c.job_id == RUN_TAGS.c.job_id)
        if owner is not None:
            query = query.where(RUNS.c.owner == owner)
        query = query.group_by(RUN_TAGS.c.tag).order_by(runs.desc(), RUN_TAGS.c.tag).limit(most)
        with self._database.read() as connection:
            return [TagCount(tag=row.tag, runs=row.runs) for row in connection.execute(query)]

    def set_metrics(self, job_id: int, values: Mapping[str, LastValue]) -> None:
        """Replace the newest values of a run's metrics."""
        rows = [{"job_id": job_id, "name": clean(name), **one.model_dump()} for name, one in values.items()]
        with self._database.write() as connection:
            connection.execute(delete(RUN_METRICS).where(RUN_METRICS.c.job_id == job_id))
            if rows:
                connection.execute(insert(RUN_METRICS), rows)

    def count_series(self, owner: str, job_id: int, size_bytes: int) -> None:
        """Count the size of a run's series in its owner's quota."""
        mine = (JOB_FILES.c.job_id == job_id, JOB_FILES.c.kind == StorageKind.CELLS)
        row = {"job_id": job_id, "kind": StorageKind.CELLS, "sha256": SERIES, "owner": owner}
        with self._database.write() as connection:
            connection.execute(delete(JOB_FILES).where(*mine, JOB_FILES.c.sha256 == SERIES))
            if connection.execute(select(JOB_FILES.c.job_id).where(*mine)).first():
                connection.execute(insert(JOB_FILES).values(**row, size_bytes=size_bytes))


def add(connection: Connection, job_id: int, owner: str, request: JobSubmit) -> None:
    """Insert the row of a new job."""
    origin = request.run or RunOrigin()
    text = clean(origin.model_copy(update={"tags": ()}).model_dump_json(exclude_defaults=True))
    row = {"job_id": job_id, "owner": owner, "name": clean(request.spec.name), "origin": text}
    connection.execute(insert(RUNS).values(**row, note="", favourite=False))
    _add_tags(connection, job_id, origin.tags)


def _add_tags(connection: Connection, job_id: int, tags: Iterable[str]) -> None:
    rows = [
        {"job_id": job_id, "tag": clean(tag), "place": place} for place, tag in enumerate(dict.fromkeys(tags))
    ]
    if rows:
        connection.execute(insert(RUN_TAGS), rows)


def _conditions(query: RunQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    tagged = exists().where(RUN_TAGS.c.job_id == JOBS.c.id)
    if query.owner is not None:
        found.append(JOBS.c.owner == query.owner)
    if query.states:
        found.append(JOBS.c.state.in_([state.value for state in query.states]))
    if query.favourite:
        found.append(RUNS.c.favourite)
    if query.tag:
        found.append(tagged.where(RUN_TAGS.c.tag == query.tag))
    if query.search:
        parts = [column.icontains(query.search, autoescape=True) for column in (RUNS.c.name, RUNS.c.note)]
        of_tag = tagged.where(RUN_TAGS.c.tag.icontains(query.search, autoescape=True))
        found.append(or_(*parts, of_tag))
    return found


def _sorted(wanted: Select[Any], query: RunQuery) -> Select[Any]:
    """Sort by a column or by a metric's newest value; runs without it come last."""
    column = _SORTS.get(query.sort)
    if column is None:
        same = (RUN_METRICS.c.job_id == JOBS.c.id) & (RUN_METRICS.c.name == query.sort)
        wanted, column = wanted.outerjoin(RUN_METRICS, same), RUN_METRICS.c.value
    if column is JOBS.c.id:
        return wanted.order_by(JOBS.c.id.desc() if query.descending else JOBS.c.id)
    return wanted.order_by((column.desc() if query.descending else column).nulls_last(), JOBS.c.id.desc())


def _records(connection: Connection, job_ids: Collection[int], origins: bool) -> dict[int, RunRecord]:
    tags: defaultdict[int, list[str]] = defaultdict(list)
    query = select(RUN_TAGS).where(RUN_TAGS.c.job_id.in_(job_ids)).order_by(RUN_TAGS.c.place)
    for row in connection.execute(query):
        tags[row.job_id].append(row.tag)
    metrics: defaultdict[int, dict[str, LastValue]] = defaultdict(dict)
    for row in connection.execute(select(RUN_METRICS).where(RUN_METRICS.c.job_id.in_(job_ids))):
        last = LastValue(value=row.value, step=row.step, low=row.low, high=row.high)
        metrics[row.job_id][row.name] = last
    gpus = _gpus(connection, job_ids)
    columns = [RUNS.c.job_id, RUNS.c.note, RUNS.c.favourite, *((RUNS.c.origin,) if origins else ())]
    rows = connection.execute(select(*columns).where(RUNS.c.job_id.in_(job_ids)))
    return {
        row.job_id: RunRecord(
            job_id=row.job_id,
            note=row.note,
            favourite=row.favourite,
            origin=RunOrigin.model_validate_json(row.origin) if origins else RunOrigin(),
            tags=tuple(tags[row.job_id]),
            gpus=gpus.get(row.job_id, 0),
            metrics=metrics[row.job_id],
        )
        for row in rows
    }


def _gpus(connection: Connection, job_ids: Collection[int]) -> dict[int, int]:
    """Return how many GPUs each job holds, or held when the last of its tasks began."""
    began: dict[int, float] = {}
    rows = connection.execute(select(USAGE).where(USAGE.c.job_id.in_(job_ids), USAGE.c.gpus > 0)).all()
    for row in rows:
        began[row.job_id] = max(row.began_at, began.get(row.job_id, 0.0))
    found: defaultdict[int, int] = defaultdict(int)
    for row in rows:
        if row.ended_at is None or row.ended_at > began[row.job_id]:
            found[row.job_id] += row.gpus
    return found
