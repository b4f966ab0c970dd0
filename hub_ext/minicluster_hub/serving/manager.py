"""Keeps models served: starts their replicas, leads the requests to those that answer, ends the others.

All that must outlive the service is in the store. Where replicas answer is not: agents report it each second.
`run` belongs to the service that leads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from minicluster.wire import JobState
from minicluster.wire.serving.models import ModelChange, ModelSubmit
from minicluster.wire.serving.replicas import ReplicaState
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.jobs.states import TransitionImpossible
from minicluster_hub.serving.automatic import AutoServing
from minicluster_hub.serving.options import ServingLimits
from minicluster_hub.serving.planning import MOST_FAILURES, ModelView, ReplicaView, Steps, next_steps
from minicluster_hub.serving.routing import Endpoint, Front, ModelRoute, replica_secret
from minicluster_hub.serving.submission import ReplicaHeldBack, ReplicaSubmission
from minicluster_hub.store import Store, StoreError
from minicluster_hub.store.jobs.models import ModelRecord, NewVersion, ReplicaRecord, VersionRecord
from minicluster_hub.support.notifier import Notifier, Subscription

_AGAIN_S = 1.0
_ENDS_WITHIN_S = 10.0
"""How much longer than its requests may take a replica may need to end."""
_REST_S, _MOST_REST_S = 60.0, 3600.0
"""Pause before a version that failed is tried again, if nothing else can be served; doubled each time."""
_ENDING = (JobState.STOPPING, JobState.FAILING)
_BEFORE_RANKS = (JobState.QUEUED, JobState.STARTING, JobState.REQUEUING)
_CHOSEN = {"active", "auto"}
"""What jobs that ended before do not change any more."""


class ModelRefused(Exception):
    """A change of a model that is not possible. code: for the client."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


@dataclass(frozen=True)
class ReplicaControl:
    """stop: has a job stopped, with a reason. wake: has the scheduler look for new jobs."""

    stop: Callable[[int, str], object]
    wake: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Answering:
    """A replica as its agent reported it."""

    endpoint: Endpoint
    attempt_id: int
    ready: bool


@dataclass
class _Known:
    """In memory of a model. note: what holds it back. led: where its requests go; (): not told yet.

    rests_until: by version that failed, when it is tried again.
    """

    note: str = ""
    led: tuple[ModelRoute | None, ...] = ()
    rests_until: dict[int, float] = field(default_factory=dict[int, float])


class ModelManager:
    """`changes` notifies the id of a model when something of it has changed."""

    def __init__(
        self,
        store: Store,
        status_cache: StatusCache,
        submission: ReplicaSubmission,
        jobs: ReplicaControl,
        automatic: AutoServing,
        front: Front,
        limits: ServingLimits,
        secret: bytes,
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self.changes = Notifier()
        self._store = store
        self._status_cache = status_cache
        self._submission = submission
        self._control = jobs
        self._automatic = automatic
        self._front = front
        self._limits = limits
        self._secret = secret
        self._clock = clock
        self._log = log
        self._answering: dict[int, _Answering] = {}
        self._models: dict[int, int] = {}
        self._known: dict[int, _Known] = {}
        self._waits: set[int] = set()
        self._due = Subscription()

    def secret_of(self, model_id: int) -> str:
        """Return what the replicas of a model want to see in each request."""
        return replica_secret(self._secret, model_id)

    # What handlers call.

    def submit(self, owner: str, request: ModelSubmit, version: NewVersion) -> ModelRecord:
        """Store a model, or a new version of it, and have it served."""
        model = self._store.models.submit(owner, request, version, self._clock())
        self._log.info("model %s: version %s is wanted", model.key, model.active)
        self._wake(model.id)
        return model

    def change(self, model: ModelRecord, change: ModelChange, by: str) -> None:
        """Change what is wanted of a model. Raises ModelRefused."""
        values: dict[str, object] = {}
        notes: list[tuple[str, str]] = []
        wanted = change.active_version
        if wanted is not None:
            self._version(model.id, wanted)
            values["active"] = wanted
            notes.append(("activated", f"version {wanted}"))
        if change.replicas is not None and change.replicas != model.replicas:
            values["replicas"] = change.replicas
            notes.append(("scaled", f"{change.replicas} replicas in place of {model.replicas}"))
        for name, flag in (("shared", change.shared), ("is_open", change.is_open)):
            if flag is not None and flag != getattr(model, name):
                values[name] = int(flag)
                notes.append(("access", f"{name} is {'on' if flag else 'off'}"))
        if change.auto is not None or change.auto_off:
            auto = None if change.auto_off else change.auto
            values["auto"] = auto
            notes.append(("auto", "off" if auto is None else f"by {auto.goal} {auto.metric}"))
        if values.keys() & _CHOSEN:
            values["chosen_at"] = self._clock()
        if values:
            self._store.models.change(model.id, values)
        for kind, text in notes:
            self._store.models.note(model.id, kind, f"{text}, by {by}", self._clock())
        if wanted is not None or change.replicas is not None:
            self._try_again(model.id, wanted or model.active)
        self._wake(model.id)

    def _try_again(self, model_id: int, version: int) -> None:
        """Forget the failures of a version: somebody wants it again."""
        self._store.models.change_version(model_id, version, {"failures": 0, "error": ""})
        if model_id in self._known:
            self._known[model_id].rests_until.pop(version, None)

    def stop(self, model: ModelRecord, by: str) -> None:
        """Have a model served no more."""
        if model.stopped_at is None:
            self._store.models.change(model.id, {"stopped_at": self._clock()})
            self._store.models.note(model.id, "stopped", f"by {by}", self._clock())
            self._wake(model.id)

    def note(self, model_id: int) -> str:
        """Return what holds a model back now, or ""."""
        known = self._known.get(model_id)
        return known.note if known is not None else ""

    def _version(self, model_id: int, number: int) -> VersionRecord:
        """Return a version. Raises ModelRefused."""
        version = self._store.models.version(model_id, number)
        if version is None:
            have = ", ".join(str(one.number) for one in reversed(self._store.models.versions(model_id)))
            raise ModelRefused("unknown_version", f"there is no version {number}; there are {have}")
        return version

    # What agents report.

    def receive(self, job_id: int, attempt_id: int, address: str, state: ReplicaState | None) -> None:
        """Take what an agent says of the replica in its task. address: of the task; "" is not reached yet."""
        before = self._answering.get(job_id)
        if state is None or not address:
            if before is not None and before.attempt_id == attempt_id:
                del self._answering[job_id]
                self._due.notify(job_id)
            return
        now = _Answering(Endpoint(job_id, address, state.port), attempt_id, state.ready)
        if now != before:
            self._answering[job_id] = now
            self._due.notify(job_id)

    def _wake(self, model_id: int) -> None:
        self._due.notify(("model", model_id))
        self.changes.notify(model_id)

    # What runs while the service leads.

    async def run(self) -> None:
        """Keep all models served until cancelled."""
        self._models.clear()
        self._known.clear()
        models = self._store.models.open_models()
        self._waits = {model.id for model in models}
        await self._status_cache.observed.wait()
        for job_id in self._automatic.missed(models):
            self._due.notify(job_id)
        async with self._status_cache.changes.listen(into=self._due):
            while True:
                for model_id in sorted(self._waits):
                    await self._advance_safely(model_id)
                keys = await self._due.wait(_AGAIN_S if self._waits else None)
                self._waits |= await self._models_of(keys)

    async def _models_of(self, keys: frozenset[Hashable]) -> set[int]:
        """Return the models to look at: somebody woke them, or one of their replicas changed."""
        jobs = [key for key in keys if isinstance(key, int)]
        found = {self._models[job_id] for job_id in jobs if job_id in self._models}
        found |= {key[1] for key in keys if isinstance(key, tuple) and key[0] == "model"}
        others = [job_id for job_id in jobs if job_id not in self._models]
        if others:
            try:
                found |= await self._automatic.consider(others, self._store.models.open_models())
            except StoreError as error:
                self._log.warning("jobs %s were not looked at for models: %s", others[:9], error)
            except Exception:
                # Models are served all the same.
                self._log.exception("jobs %s cannot become versions of models", others[:9])
        return found

    async def _advance_safely(self, model_id: int) -> None:
        """Advance a model; the others go on if it cannot be."""
        self._waits.discard(model_id)
        try:
            if await self._advance(model_id):
                self._waits.add(model_id)
        except (StoreError, OSError) as error:
            self._log.warning("model %s waits: %s", model_id, error)
            self._waits.add(model_id)
        except Exception:
            self._log.exception("model %s cannot go on for now", model_id)
            self._waits.add(model_id)
        self.changes.notify(model_id)

    async def _advance(self, model_id: int) -> bool:
        """Do what is to be done for a model now; return whether to look again soon."""
        model = self._store.models.model(model_id)
        if model is None or model.ended_at is not None:
            return False
        known = self._known.setdefault(model_id, _Known())
        replicas = self._conclude_ended(model, known)
        self._models.update((one.job_id, model_id) for one in replicas)
        self._mark_answering(replicas)
        view = self.view(model, replicas)
        steps = next_steps(view)
        if steps.fall_back:
            self._fall_back(model, steps.fall_back)
            return True
        held = self._start(model, known, steps)
        await self._lead(model, known, view, steps)
        self._retire(model, replicas, steps)
        if model.stopped_at is not None and not replicas:
            await self._end(model)
            return False
        # Replicas that were just told to end are looked at again, too: one that hangs changes nothing.
        return self._end_late(model, replicas) or bool(steps.retire) or held or model.active in view.failed

    def view(self, model: ModelRecord, replicas: list[ReplicaRecord] | None = None) -> ModelView:
        """Return a model as `next_steps` sees it."""
        found = self._store.models.replicas(model.id) if replicas is None else replicas
        waiting = {wait.job_id for wait in self._status_cache.waits()}
        present = tuple(
            ReplicaView(
                job_id=one.job_id,
                version=one.version,
                state=one.job_state,
                ready=self._is_ready(one),
                waits=one.job_id in waiting,
                retired=one.retired_at is not None,
            )
            for one in found
            if not one.job_state.terminal
        )
        stopped = model.stopped_at is not None
        failed = self._failed(model.id)
        return ModelView(model.active, model.serving, model.replicas, stopped, failed, present)

    def _failed(self, model_id: int) -> frozenset[int]:
        """Return the versions that do not come up, but for those that are to be tried again."""
        known, now = self._known.get(model_id, _Known()), self._clock()
        failed = self._store.models.failed_versions(model_id, MOST_FAILURES)
        return frozenset(one for one in failed if known.rests_until.get(one, 0.0) > now)

    def _is_ready(self, replica: ReplicaRecord) -> bool:
        answering = self._answering.get(replica.job_id)
        if answering is None or answering.attempt_id != replica.attempt_id:
            return False
        return answering.ready and replica.job_state is JobState.RUNNING

    def _conclude_ended(self, model: ModelRecord, known: _Known) -> list[ReplicaRecord]:
        """Note the replicas whose jobs are over, and whether their version comes up; return the others."""
        replicas = self._store.models.replicas(model.id)
        for replica in replicas:
            if not replica.job_state.terminal:
                continue
            self._store.models.change_replica(replica.job_id, {"ended_at": self._clock()})
            self._answering.pop(replica.job_id, None)
            self._models.pop(replica.job_id, None)
            self._status_cache.let_leave(replica.job_id, leave=False)
            if replica.retired_at is None and replica.job_state is JobState.FAILED:
                self._count_failure(model, replica, known)
        return [one for one in replicas if not one.job_state.terminal]

    def _count_failure(self, model: ModelRecord, replica: ReplicaRecord, known: _Known) -> None:
        job = self._store.job(replica.job_id)
        why = job.error.message if job is not None and job.error is not None else "its job failed"
        self._store.models.note(
            model.id,
            "replica-failed",
            f"job {replica.job_id} of version {replica.version}: {why}",
            self._clock(),
        )
        version = self._store.models.version(model.id, replica.version)
        if version is None:
            return
        failures = 0 if replica.answered else version.failures + 1
        if _has_no_model(version, why):
            failures = max(failures, MOST_FAILURES)
        elif failures == MOST_FAILURES:
            text = f"version {replica.version}: {failures} replicas in a row ended before they answered"
            self._store.models.note(model.id, "failed", text, self._clock())
        values: dict[str, object] = {"failures": failures, "error": why}
        self._store.models.change_version(model.id, replica.version, values)
        if failures >= MOST_FAILURES:
            rest_s = min(_MOST_REST_S, _REST_S * 2 ** min(failures - MOST_FAILURES, 10))
            known.rests_until[replica.version] = self._clock() + rest_s

    def _mark_answering(self, replicas: list[ReplicaRecord]) -> None:
        """Note the replicas that answer for the first time."""
        for replica in replicas:
            if self._is_ready(replica) and not replica.answered:
                self._store.models.change_replica(replica.job_id, {"answered": 1})
                self._store.models.change_version(
                    replica.model_id, replica.version, {"failures": 0, "error": ""}
                )

    def _fall_back(self, model: ModelRecord, version: int) -> None:
        """Want the version that is served, since the one that was wanted does not come up."""
        self._store.models.change(model.id, {"active": version})
        text = f"version {version} goes on: version {model.active} does not come up"
        self._store.models.note(model.id, "fell-back", text, self._clock())
        self._log.warning("model %s: %s", model.key, text)

    def _start(self, model: ModelRecord, known: _Known, steps: Steps) -> bool:
        """Submit the replicas that are missing; return whether one is held back, and the model's note says
        why.
        """
        known.note = ""
        versions = [number for number, count in steps.start.items() for _ in range(count)]
        try:
            for number in versions:
                job = self._submission.submit(model, self._version(model.id, number))
                self._models[job.id] = model.id
                self._status_cache.changes.notify(job.id)
        except ReplicaHeldBack as held_back:
            known.note = f"{held_back}."
        if versions:
            self._control.wake()
        return bool(known.note)

    async def _lead(self, model: ModelRecord, known: _Known, view: ModelView, steps: Steps) -> None:
        """Lead the requests to the replicas of one version, before any other one is told to end."""
        going = set(steps.retire)
        ready = [one for one in view.ready(steps.serving) if one.job_id not in going]
        endpoints = tuple(self._answering[one.job_id].endpoint for one in ready)
        route = self._route(model, steps.serving, endpoints)
        if known.led != (route,):
            if route is None:
                await self._front.drop(model.id)
            else:
                await self._front.lead(route)
            known.led = (route,)
        # Only now: who reads which version is served, and asks, is answered by it.
        if steps.serving != model.serving:
            self._store.models.change(model.id, {"serving": steps.serving})
            whom = f"version {steps.serving}" if steps.serving else "no version"
            self._store.models.note(model.id, "serving", f"{whom} gets the requests", self._clock())

    def _route(self, model: ModelRecord, serving: int, endpoints: tuple[Endpoint, ...]) -> ModelRoute | None:
        version = self._store.models.version(model.id, serving or model.active)
        if version is None or version.spec.serve is None or model.stopped_at is not None:
            return None
        serve = version.spec.serve
        return ModelRoute(
            model_id=model.id,
            owner=model.owner,
            name=model.name,
            version=version.number,
            secret=self.secret_of(model.id),
            shared=model.shared,
            is_open=model.is_open and self._limits.open_allowed,
            options=serve.options,
            signature=serve.signature,
            endpoints=endpoints,
        )

    def _retire(self, model: ModelRecord, replicas: list[ReplicaRecord], steps: Steps) -> None:
        """Tell replicas to take no more requests, and to end."""
        by_id: Mapping[int, ReplicaRecord] = {one.job_id: one for one in replicas}
        for job_id in steps.retire:
            self._store.models.change_replica(job_id, {"retired_at": self._clock()})
            if by_id[job_id].job_state in _BEFORE_RANKS:
                self._stop(job_id, "its model needs it no more")
        for replica in replicas:
            if replica.retired_at is not None or replica.job_id in steps.retire:
                self._status_cache.let_leave(replica.job_id)

    def _end_late(self, model: ModelRecord, replicas: list[ReplicaRecord]) -> bool:
        """Stop replicas that do not end by themselves; return whether some may still do so."""
        left = [one for one in replicas if one.retired_at is not None]
        for replica in left:
            version = self._store.models.version(model.id, replica.version)
            serve = version.spec.serve if version is not None else None
            most_s = (serve.options.timeout_s if serve is not None else 0.0) + _ENDS_WITHIN_S
            late = (replica.retired_at or 0.0) + most_s < self._clock()
            if replica.job_state in _BEFORE_RANKS or (late and replica.job_state not in _ENDING):
                self._stop(replica.job_id, "it took too long to answer its last requests")
        return bool(left)

    def _stop(self, job_id: int, reason: str) -> None:
        try:
            self._control.stop(job_id, reason)
        except TransitionImpossible:
            return  # It ended in the meantime.

    async def _end(self, model: ModelRecord) -> None:
        self._store.models.change(model.id, {"ended_at": self._clock()})
        await self._front.drop(model.id)
        self._known.pop(model.id, None)
        self._log.info("model %s is over", model.key)


def _has_no_model(version: VersionRecord, why: str) -> bool:
    """Whether the job that trained a version left nothing to serve, so that no replica of it can start."""
    serve = version.spec.serve
    trained = serve.trained_by if serve is not None else None
    return serve is not None and trained is not None and trained.left_no(serve.variable) in why
