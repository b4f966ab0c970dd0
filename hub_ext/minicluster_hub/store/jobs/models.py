"""Served models, their versions, replicas and histories: one transaction per method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from minicluster.wire import JobSpec, JobState, JobSubmit, RunOrigin
from minicluster.wire.serving.models import MOST_MODEL_EVENTS, MOST_VERSIONS, AutoServe, ModelSubmit
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.jobs.jobs import insert_job
from minicluster_hub.store.rows import AnyRow, add_row, clean, to_json
from minicluster_hub.store.tables.main import JOBS
from minicluster_hub.store.tables.serving import MODEL_EVENTS, MODEL_VERSIONS, MODELS, REPLICAS

_TEXT_CHARS = 400
"""Of a line of the history."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """active: the version that is wanted. serving: the one that gets the requests; 0: none.

    chosen_at: when somebody last sent or activated a version, or set `auto`. stopped_at: when its owner
    stopped it. ended_at: when its last replica had ended after that.
    """

    id: int
    owner: str
    name: str
    replicas: int
    active: int
    serving: int
    shared: bool
    is_open: bool
    auto: AutoServe | None
    created_at: float
    chosen_at: float
    stopped_at: float | None = None
    ended_at: float | None = None

    @property
    def key(self) -> str:
        """What its address has: OWNER/NAME."""
        return f"{self.owner}/{self.name}"


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """spec: of each replica's job; spec.serve has the number. value: of the metric of --auto, if known.

    failures: replicas in a row that ended by themselves before they answered.
    """

    model_id: int
    number: int
    spec: JobSpec
    run: RunOrigin | None
    reason: str
    value: float | None
    failures: int
    error: str
    created_at: float


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """answered: it was ready once. retired_at: when it was told to take no more requests.

    attempt_id: its job's newest attempt.
    """

    job_id: int
    model_id: int
    version: int
    answered: bool
    retired_at: float | None
    created_at: float
    job_state: JobState
    attempt_id: int | None = None


@dataclass(frozen=True, slots=True)
class ModelEventRecord:
    id: int
    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version to be added. reason: for the history. key: the same is the same version."""

    key: str
    spec: JobSpec
    reason: str
    run: RunOrigin | None = None
    value: float | None = None


class ModelQueries(DatabasePart):
    """Part of the store."""

    # Models.

    def submit(self, owner: str, request: ModelSubmit, version: NewVersion, now: float) -> ModelRecord:
        """Return the owner's model of that name with a new version, which is wanted from now on.

        The same key again changes nothing. version.spec.serve: its model and version are set here.
        """
        values = {**_submitted(request), "chosen_at": now}
        with self._database.write() as connection:
            known = _open_of(connection, owner, request.name)
            if known is None:
                empty = {"replicas": 1, "active": 0, "serving": 0, **values}
                row = {**empty, "owner": owner, "name": request.name, "created_at": now}
                model_id = add_row(connection, MODELS, _columns(row))
            elif _version_of_key(connection, known.id, version.key):
                return known
            else:
                model_id = known.id
                _change(connection, known, values)
            number = _add_version(connection, model_id, version, now)
            connection.execute(update(MODELS).where(MODELS.c.id == model_id).values(active=number))
            return _known(connection, model_id)

    def version_of_key(self, owner: str, name: str, key: str) -> ModelRecord | None:
        """Return the owner's model of that name, if it has a version with this idempotency key."""
        with self._database.read() as connection:
            known = _open_of(connection, owner, name)
            return known if known is not None and _version_of_key(connection, known.id, key) else None

    def add_version(self, model_id: int, version: NewVersion, now: float) -> int | None:
        """Add a version that is wanted from now on; return its number, None if it is there already."""
        with self._database.write() as connection:
            if _version_of_key(connection, model_id, version.key):
                return None
            number = _add_version(connection, model_id, version, now)
            connection.execute(update(MODELS).where(MODELS.c.id == model_id).values(active=number))
            return number

    def model(self, model_id: int) -> ModelRecord | None:
        return self._one(MODELS.c.id == model_id)

    def named(self, owner: str, name: str) -> ModelRecord | None:
        """Return the owner's model of that name, unless it is stopped."""
        return self._one(_is_open(owner, name))

    def models(self, owner: str | None, limit: int) -> list[ModelRecord]:
        """Return models, the newest first. `owner` None: everyone's."""
        query = select(MODELS).order_by(MODELS.c.id.desc()).limit(limit)
        if owner is not None:
            query = query.where(MODELS.c.owner == owner)
        with self._database.read() as connection:
            return [_to_model(row) for row in connection.execute(query)]

    def open_models(self) -> list[ModelRecord]:
        """Return the models that are served, or of which a replica is left; the oldest first."""
        with self._database.read() as connection:
            query = select(MODELS).where(MODELS.c.ended_at.is_(None)).order_by(MODELS.c.id)
            return [_to_model(row) for row in connection.execute(query)]

    def wanted_replicas(self, owner: str, *, but: str) -> int:
        """Return how many replicas an owner's models shall have, without those of the model `but`."""
        of_others = and_(MODELS.c.owner == owner, MODELS.c.name != but, MODELS.c.stopped_at.is_(None))
        with self._database.read() as connection:
            query = select(func.coalesce(func.sum(MODELS.c.replicas), 0)).where(of_others)
            return int(connection.execute(query).scalar_one())

    def change(self, model_id: int, values: Mapping[str, Any]) -> None:
        """Set columns of a model; `auto` as an AutoServe or None."""
        with self._database.write() as connection:
            _change(connection, _known(connection, model_id), values)

    # Versions.

    def version(self, model_id: int, number: int) -> VersionRecord | None:
        query = select(MODEL_VERSIONS).where(
            MODEL_VERSIONS.c.model_id == model_id, MODEL_VERSIONS.c.number == number
        )
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else _to_version(row)

    def versions(self, model_id: int) -> list[VersionRecord]:
        """Return a model's newest versions, the newest first."""
        query = select(MODEL_VERSIONS).where(MODEL_VERSIONS.c.model_id == model_id)
        query = query.order_by(MODEL_VERSIONS.c.number.desc()).limit(MOST_VERSIONS)
        with self._database.read() as connection:
            return [_to_version(row) for row in connection.execute(query)]

    def failed_versions(self, model_id: int, failures: int) -> frozenset[int]:
        """Return the versions with at least so many failures in a row."""
        query = select(MODEL_VERSIONS.c.number).where(
            MODEL_VERSIONS.c.model_id == model_id, MODEL_VERSIONS.c.failures >= failures
        )
        with self._database.read() as connection:
            return frozenset(connection.execute(query).scalars())

    def change_version(self, model_id: int, number: int, values: Mapping[str, Any]) -> None:
        """Set columns of a version."""
        one = and_(MODEL_VERSIONS.c.model_id == model_id, MODEL_VERSIONS.c.number == number)
        cleaned = {name: clean(value) if isinstance(value, str) else value for name, value in values.items()}
        with self._database.write() as connection:
            connection.execute(update(MODEL_VERSIONS).where(one).values(cleaned))

    # Replicas.

    def add_replica(
        self, model: ModelRecord, version: int, request: JobSubmit, now: float
    ) -> JobRecord | None:
        """Submit a replica's job; None if the owner has a job with its key already."""
        values = {"model_id": model.id, "version": version, "answered": 0, "created_at": now}
        try:
            with self._database.write() as connection:
                job = insert_job(connection, model.owner, request, now)
                connection.execute(insert(REPLICAS).values({**values, "job_id": job.id}))
        except IntegrityError:
            return None
        return job

    def replicas(self, model_id: int) -> list[ReplicaRecord]:
        """Return a model's replicas whose end was not dealt with yet, the oldest first."""
        return self._replicas(REPLICAS.c.model_id == model_id, REPLICAS.c.ended_at.is_(None))

    def count_replicas(self, model_id: int) -> int:
        """Return how many replicas a model has had."""
        query = select(func.count()).select_from(REPLICAS).where(REPLICAS.c.model_id == model_id)
        with self._database.read() as connection:
            return connection.execute(query).scalar_one()

    def change_replica(self, job_id: int, values: Mapping[str, Any]) -> None:
        """Set columns of a replica."""
        with self._database.write() as connection:
            connection.execute(update(REPLICAS).where(REPLICAS.c.job_id == job_id).values(dict(values)))

    def _replicas(self, *conditions: ColumnElement[bool]) -> list[ReplicaRecord]:
        columns = (REPLICAS, JOBS.c.state.label("job_state"), JOBS.c.attempt_id)
        query = select(*columns).join(JOBS, JOBS.c.id == REPLICAS.c.job_id)
        with self._database.read() as connection:
            rows = connection.execute(query.where(*conditions).order_by(REPLICAS.c.job_id))
            return [_to_replica(row) for row in rows]

    # Histories.

    def note(self, model_id: int, kind: str, text: str, now: float) -> None:
        """Write a line of a model's history."""
        with self._database.write() as connection:
            _add_event(connection, model_id, kind, text, now)

    def events(self, model_id: int) -> list[ModelEventRecord]:
        """Return the newest lines of a model's history, the newest first."""
        query = select(*MODEL_EVENTS.c["id", "at", "kind", "text"]).where(MODEL_EVENTS.c.model_id == model_id)
        query = query.order_by(MODEL_EVENTS.c.id.desc()).limit(MOST_MODEL_EVENTS)
        with self._database.read() as connection:
            return [ModelEventRecord(**row._mapping) for row in connection.execute(query)]

    def _one(self, condition: ColumnElement[bool]) -> ModelRecord | None:
        with self._database.read() as connection:
            row = connection.execute(select(MODELS).where(condition)).one_or_none()
        return None if row is None else _to_model(row)


def _submitted(request: ModelSubmit) -> dict[str, Any]:
    """Return what a submission sets; what it leaves out stays as it is."""
    values: dict[str, Any] = {"shared": int(request.shared), "is_open": int(request.is_open)}
    if request.replicas is not None:
        values["replicas"] = request.replicas
    if request.auto is not None:
        values["auto"] = request.auto
    return values


def _columns(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_json(value) if name == "auto" else value for name, value in values.items()}


def _change(connection: Connection, model: ModelRecord, values: Mapping[str, Any]) -> None:
    """Set columns of a model. With another metric, its versions' values of the former one are forgotten."""
    auto: AutoServe | None = values.get("auto")
    if auto is not None and (model.auto is None or model.auto.metric != auto.metric):
        of_model = MODEL_VERSIONS.c.model_id == model.id
        connection.execute(update(MODEL_VERSIONS).where(of_model).values(value=None))
    connection.execute(update(MODELS).where(MODELS.c.id == model.id).values(_columns(values)))


def _is_open(owner: str, name: str) -> ColumnElement[bool]:
    return and_(MODELS.c.owner == owner, MODELS.c.name == name, MODELS.c.stopped_at.is_(None))


def _open_of(connection: Connection, owner: str, name: str) -> ModelRecord | None:
    row = connection.execute(select(MODELS).where(_is_open(owner, name)).with_for_update()).one_or_none()
    return None if row is None else _to_model(row)


def _known(connection: Connection, model_id: int) -> ModelRecord:
    return _to_model(connection.execute(select(MODELS).where(MODELS.c.id == model_id)).one())


def _version_of_key(connection: Connection, model_id: int, key: str) -> bool:
    query = select(MODEL_VERSIONS.c.number).where(
        MODEL_VERSIONS.c.model_id == model_id, MODEL_VERSIONS.c.idempotency_key == clean(key)
    )
    return connection.execute(query).one_or_none() is not None


def _add_version(connection: Connection, model_id: int, version: NewVersion, now: float) -> int:
    newest = select(func.max(MODEL_VERSIONS.c.number)).where(MODEL_VERSIONS.c.model_id == model_id)
    number = (connection.execute(newest).scalar() or 0) + 1
    assert version.spec.serve is not None  # noqa: S101 - the callers set it
    serve = version.spec.serve.model_copy(update={"model": model_id, "version": number})
    row = {
        "model_id": model_id,
        "number": number,
        "idempotency_key": clean(version.key),
        "spec": to_json(version.spec.model_copy(update={"serve": serve})),
        "run": to_json(version.run),
        "reason": clean(version.reason),
        "value": version.value,
        "failures": 0,
        "error": "",
        "created_at": now,
    }
    connection.execute(insert(MODEL_VERSIONS).values(row))
    _add_event(connection, model_id, "version", f"version {number}: {version.reason}", now)
    return number


def _add_event(connection: Connection, model_id: int, kind: str, text: str, now: float) -> None:
    row = {"model_id": model_id, "at": now, "kind": kind, "text": clean(text)[:_TEXT_CHARS]}
    connection.execute(insert(MODEL_EVENTS).values(row))


def _to_model(row: AnyRow) -> ModelRecord:
    auto = None if row.auto is None else AutoServe.model_validate_json(row.auto)
    flags = {"shared": bool(row.shared), "is_open": bool(row.is_open)}
    return ModelRecord(**{**row._mapping, **flags, "auto": auto})


def _to_version(row: AnyRow) -> VersionRecord:
    values = dict(row._mapping)
    del values["idempotency_key"]
    run = None if row.run is None else RunOrigin.model_validate_json(row.run)
    return VersionRecord(**{**values, "spec": JobSpec.model_validate_json(row.spec), "run": run})


def _to_replica(row: AnyRow) -> ReplicaRecord:
    values = {**row._mapping, "answered": bool(row.answered), "job_state": JobState(row.job_state)}
    del values["ended_at"]
    return ReplicaRecord(**values)
