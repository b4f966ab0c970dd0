"""Sweeps and their trials: one transaction per method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pydantic import TypeAdapter
from sqlalchemy import Connection, Select, bindparam, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from minicluster.wire import JobSpec, JobState, JobSubmit, RunOrigin
from minicluster.wire.sweeps.sweeps import SweepSettings, SweepState, SweepSubmit, TrialState
from minicluster.wire.sweeps.trials import Among, DrawnParameter, NumberRange
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.store.database import DatabasePart
from minicluster_hub.store.jobs.jobs import insert_job
from minicluster_hub.store.rows import AnyRow, add_row, clean, portions, to_json
from minicluster_hub.store.tables.main import JOBS
from minicluster_hub.store.tables.sweeps import PARAMETERS, SWEEPS, TRIALS, VALUES

OPEN = "open"
_REMEMBERED = 64
# Run many times for each trial: built once.
_SWEEP = select(SWEEPS).where(SWEEPS.c.id == bindparam("sweep_id"))
_TRIALS = (
    select(TRIALS, JOBS.c.state.label("job_state"), JOBS.c.started_at, JOBS.c.ended_at.label("job_ended_at"))
    .join(JOBS, JOBS.c.id == TRIALS.c.job_id)
    .order_by(TRIALS.c.sweep_id, TRIALS.c.number)
)
_OF_SWEEP = _TRIALS.where(TRIALS.c.sweep_id == bindparam("sweep_id"))
_OPEN_OF_SWEEP = _OF_SWEEP.where(TRIALS.c.state == OPEN)
_OF_JOB = _TRIALS.where(TRIALS.c.job_id == bindparam("job_id"))
_AMONG: TypeAdapter[Among] = TypeAdapter(Among)
_AHEAD = TypeAdapter(tuple[DrawnParameter, ...])


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """spec: of each trial's job. run: what is remembered of each of them."""

    id: int
    owner: str
    name: str
    spec: JobSpec
    settings: SweepSettings
    state: SweepState
    error: str
    created_at: float
    ended_at: float | None
    run: RunOrigin | None = None


@dataclass(frozen=True, slots=True)
class ParameterRecord:
    """What was drawn for a trial: a number of a range, or the index of a choice."""

    name: str
    among: Among
    value: float


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """state: None as long as the trial is not over. job_state, started_at, job_ended_at: of its job.

    pruned_at: when it was decided that its ranks shall leave. left_at, left_step: when and where they did.
    ahead: what was drawn before it was asked for; None: nothing was tried to be.
    """

    sweep_id: int
    number: int
    job_id: int
    state: TrialState | None
    value: float | None
    step: float | None
    pruned_at: float | None
    left_at: float | None
    left_step: float | None
    error: str
    created_at: float
    ended_at: float | None
    job_state: JobState
    started_at: float | None
    job_ended_at: float | None
    ahead: tuple[ParameterRecord, ...] | None = None

    @property
    def shown_state(self) -> TrialState:
        if self.state is not None:
            return self.state
        return TrialState.WAITING if self.started_at is None else TrialState.RUNNING


class SweepQueries(DatabasePart):
    """Part of the store."""

    def submit(self, owner: str, request: SweepSubmit, now: float) -> tuple[SweepRecord, bool]:
        """Return the sweep with the owner's idempotency key, and whether this call made it."""
        values = {
            "owner": owner,
            "idempotency_key": clean(request.idempotency_key),
            "name": clean(request.spec.name),
            "spec": to_json(request.spec),
            "settings": to_json(request.settings),
            "run": to_json(request.run),
            "state": SweepState.RUNNING,
            "error": "",
            "created_at": now,
        }
        try:
            with self._database.write() as connection:
                sweep_id = add_row(connection, SWEEPS, values)
                return _known(connection, SWEEPS.c.id == sweep_id), True
        except IntegrityError:
            known = self.sweep_of_key(owner, request.idempotency_key)
            if known is None:
                raise
            return known, False

    def sweep_of_key(self, owner: str, key: str) -> SweepRecord | None:
        query = select(SWEEPS).where(SWEEPS.c.owner == owner, SWEEPS.c.idempotency_key == clean(key))
        return self._one(query)

    def sweep(self, sweep_id: int) -> SweepRecord | None:
        return self._one(_SWEEP, {"sweep_id": sweep_id})

    def sweeps(self, owner: str | None, limit: int) -> list[SweepRecord]:
        """Return sweeps, the newest first. `owner` None: everyone's."""
        query = select(SWEEPS).order_by(SWEEPS.c.id.desc()).limit(limit)
        if owner is not None:
            query = query.where(SWEEPS.c.owner == owner)
        with self._database.read() as connection:
            return [_to_sweep(row) for row in connection.execute(query)]

    def open_sweeps(self) -> list[SweepRecord]:
        """Return the sweeps that are not over, or have trials that are not; the oldest first."""
        states = [state.value for state in SweepState if not state.over]
        with_trials = select(TRIALS.c.sweep_id).where(TRIALS.c.state == OPEN)
        is_open = or_(SWEEPS.c.state.in_(states), SWEEPS.c.id.in_(with_trials))
        query = select(SWEEPS).where(is_open).order_by(SWEEPS.c.id)
        with self._database.read() as connection:
            return [_to_sweep(row) for row in connection.execute(query)]

    def set_state(self, sweep_id: int, state: SweepState, now: float, error: str = "") -> None:
        """Set a sweep's state, unless it is over."""
        states = [one.value for one in SweepState if not one.over]
        values = {"state": state, "error": clean(error), "ended_at": now if state.over else None}
        with self._database.write() as connection:
            changed = update(SWEEPS).where(SWEEPS.c.id == sweep_id, SWEEPS.c.state.in_(states))
            connection.execute(changed.values(values))

    # Trials.

    def add_trial(self, sweep: SweepRecord, number: int, request: JobSubmit, now: float) -> JobRecord:
        """Submit a trial's job. Raises IntegrityError if the trial is there already."""
        values = {"sweep_id": sweep.id, "number": number, "state": OPEN, "error": "", "created_at": now}
        with self._database.write() as connection:
            job = insert_job(connection, sweep.owner, request, now)
            connection.execute(insert(TRIALS).values({**values, "job_id": job.id}))
        return job

    def trials(self, sweep_id: int) -> list[TrialRecord]:
        """Return the trials of a sweep in order."""
        with self._database.read() as connection:
            rows = connection.execute(_OF_SWEEP, {"sweep_id": sweep_id})
            return [_to_trial(row) for row in rows]

    def open_trials(self, sweep_id: int) -> list[TrialRecord]:
        """Return the trials of a sweep that are not over, in order."""
        with self._database.read() as connection:
            rows = connection.execute(_OPEN_OF_SWEEP, {"sweep_id": sweep_id})
            return [_to_trial(row) for row in rows]

    def trial_of_job(self, job_id: int) -> TrialRecord | None:
        with self._database.read() as connection:
            row = connection.execute(_OF_JOB, {"job_id": job_id}).one_or_none()
        return None if row is None else _to_trial(row)

    def sweeps_of_jobs(self, job_ids: Iterable[int]) -> dict[int, int]:
        """Return the sweeps of those of these jobs that are trials, by job."""
        found: dict[int, int] = {}
        with self._database.read() as connection:
            for some in portions(list(job_ids)):
                query = select(TRIALS.c.job_id, TRIALS.c.sweep_id).where(TRIALS.c.job_id.in_(some))
                found |= {row.job_id: row.sweep_id for row in connection.execute(query)}
        return found

    def end_trial(
        self,
        trial: TrialRecord,
        state: TrialState,
        now: float,
        *,
        value: float | None = None,
        step: float | None = None,
        error: str = "",
    ) -> None:
        """Set how a trial ended, unless that is known already."""
        values = {"state": state, "value": value, "step": step, "error": clean(error), "ended_at": now}
        self._change_trial(trial, values, TRIALS.c.state == OPEN)

    def prune(self, trial: TrialRecord, now: float) -> None:
        """Record that the trial's ranks shall leave."""
        self._change_trial(trial, {"pruned_at": now}, TRIALS.c.pruned_at.is_(None))

    def left(self, trial: TrialRecord, step: float | None, now: float) -> None:
        """Record where the trial's ranks left: the first that says so."""
        self._change_trial(trial, {"left_at": now, "left_step": step}, TRIALS.c.left_at.is_(None))

    def _change_trial(self, trial: TrialRecord, values: Mapping[str, object], only_if: object) -> None:
        row = (TRIALS.c.sweep_id == trial.sweep_id, TRIALS.c.number == trial.number)
        with self._database.write() as connection:
            connection.execute(update(TRIALS).where(*row, only_if).values(values))  # type: ignore[arg-type]

    # Parameters and values.

    def parameters(self, sweep_id: int, number: int | None = None) -> dict[int, list[ParameterRecord]]:
        """Return what was drawn, by trial, in the order of the requests."""
        query = select(PARAMETERS).where(PARAMETERS.c.sweep_id == sweep_id)
        if number is not None:
            query = query.where(PARAMETERS.c.number == number)
        found: dict[int, list[ParameterRecord]] = {}
        with self._database.read() as connection:
            for row in connection.execute(query.order_by(PARAMETERS.c.number, PARAMETERS.c.position)):
                found.setdefault(row.number, []).append(_to_parameter(row))
        return found

    def draw(self, trial: TrialRecord, drawn: ParameterRecord) -> ParameterRecord:
        """Store what was drawn for a trial; return what is stored, which may be another rank's."""
        own = (PARAMETERS.c.sweep_id == trial.sweep_id, PARAMETERS.c.number == trial.number)
        known = select(PARAMETERS).where(*own, PARAMETERS.c.name == clean(drawn.name))
        with self._database.write() as connection:
            row = connection.execute(known).one_or_none()
            if row is not None:
                return _to_parameter(row)
            position = connection.execute(
                select(func.count()).select_from(PARAMETERS).where(*own)
            ).scalar_one()
            values = {
                "sweep_id": trial.sweep_id,
                "number": trial.number,
                "name": clean(drawn.name),
                "position": position,
                "among": to_json(drawn.among),
                "value": drawn.value,
            }
            connection.execute(insert(PARAMETERS).values(values))
        return drawn

    def draw_ahead(self, trial: TrialRecord, drawn: Sequence[ParameterRecord]) -> TrialRecord:
        """Store what was drawn ahead for a trial; return the trial with what is stored."""
        messages = tuple(DrawnParameter(name=one.name, among=one.among, value=one.value) for one in drawn)
        self._change_trial(trial, {"ahead": _AHEAD.dump_json(messages).decode()}, TRIALS.c.ahead.is_(None))
        return self.trial_of_job(trial.job_id) or trial

    def values(self, sweep_id: int) -> dict[int, dict[float, float]]:
        """Return the metric at each step, by trial."""
        query = select(VALUES).where(VALUES.c.sweep_id == sweep_id).order_by(VALUES.c.number, VALUES.c.at)
        found: dict[int, dict[float, float]] = {}
        with self._database.read() as connection:
            for row in connection.execute(query):
                found.setdefault(row.number, {})[row.step] = row.value
        return found

    def last_value(self, trial: TrialRecord) -> tuple[float, float] | None:
        """Return the step and the value that were stored last."""
        own = (VALUES.c.sweep_id == trial.sweep_id, VALUES.c.number == trial.number)
        query = select(VALUES).where(*own).order_by(VALUES.c.at.desc(), VALUES.c.step.desc()).limit(1)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else (row.step, row.value)

    def newest(self, trials: Sequence[TrialRecord]) -> dict[int, tuple[float, float]]:
        """Return the last step and value of the trials that are not over, by number."""
        found = {trial.number: self.last_value(trial) for trial in trials if trial.state is None}
        return {number: value for number, value in found.items() if value is not None}

    def add_values(self, trial: TrialRecord, values: Sequence[tuple[float, float]], now: float) -> None:
        """Store the metric at some steps; the values of known steps are replaced."""
        own = (VALUES.c.sweep_id == trial.sweep_id, VALUES.c.number == trial.number)
        with self._database.write() as connection:
            for step, value in values:
                changed = update(VALUES).where(*own, VALUES.c.step == step).values(value=value, at=now)
                if not connection.execute(changed).rowcount:
                    row = {"sweep_id": trial.sweep_id, "number": trial.number, "step": step}
                    connection.execute(insert(VALUES).values({**row, "value": value, "at": now}))

    def _one(
        self, query: Select[tuple[object, ...]], values: Mapping[str, object] | None = None
    ) -> SweepRecord | None:
        with self._database.read() as connection:
            row = connection.execute(query, values).one_or_none()
        return None if row is None else _to_sweep(row)


def _known(connection: Connection, where: object) -> SweepRecord:
    return _to_sweep(connection.execute(select(SWEEPS).where(where)).one())  # type: ignore[arg-type]


def _to_sweep(row: AnyRow) -> SweepRecord:
    return SweepRecord(
        id=row.id,
        owner=row.owner,
        name=row.name,
        spec=_spec(row.spec),
        settings=_settings(row.settings),
        state=SweepState(row.state),
        error=row.error,
        created_at=row.created_at,
        ended_at=row.ended_at,
        run=None if row.run is None else RunOrigin.model_validate_json(row.run),
    )


# A sweep's own never change, and are read with each of its trials.


@lru_cache(_REMEMBERED)
def _spec(text: str) -> JobSpec:
    return JobSpec.model_validate_json(text)


@lru_cache(_REMEMBERED)
def _settings(text: str) -> SweepSettings:
    return SweepSettings.model_validate_json(text)


def _to_trial(row: AnyRow) -> TrialRecord:
    state = None if row.state == OPEN else TrialState(row.state)
    read = {"state": state, "job_state": JobState(row.job_state), "ahead": _ahead(row.ahead, state)}
    return TrialRecord(**{**row._mapping, **read})


def _ahead(text: str | None, state: TrialState | None) -> tuple[ParameterRecord, ...] | None:
    """Return what was drawn ahead, as long as the trial is not over."""
    if text is None or state is not None:
        return None
    return tuple(ParameterRecord(one.name, one.among, one.value) for one in _AHEAD.validate_json(text))


def _to_parameter(row: AnyRow) -> ParameterRecord:
    return ParameterRecord(row.name, _AMONG.validate_json(row.among), row.value)


def shown(drawn: ParameterRecord) -> bool | int | float | str | None:
    """Return a parameter as people see it."""
    if isinstance(drawn.among, NumberRange):
        return int(drawn.value) if drawn.among.whole else drawn.value
    return drawn.among.choices[int(drawn.value)]
