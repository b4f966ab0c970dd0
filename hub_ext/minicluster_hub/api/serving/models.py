"""Models: serve, list, show, change, stop; their histories."""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from minicluster.wire import JobSpec
from minicluster.wire.serving.models import (
    ModelChange,
    ModelDetails,
    ModelEvent,
    ModelEvents,
    ModelList,
    ModelSubmit,
    ServedModel,
)
from minicluster.wire.serving.replicas import ReplicaOf
from minicluster_hub.api.jobs import JobsHandler
from minicluster_hub.serving.manager import ModelRefused
from minicluster_hub.serving.planning import ModelView
from minicluster_hub.serving.routing import model_key
from minicluster_hub.serving.submission import as_replica
from minicluster_hub.serving.views import model_details, model_message
from minicluster_hub.store.jobs.models import ModelRecord, NewVersion
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError, invalid_body
from minicluster_hub.web.long_polling import HeldHandler
from minicluster_hub.web.route import OWNER, Query, Scope, route

_HINT = "GET api/models lists your models"


class ModelsHandler(JobsHandler):
    """Lists models, and takes new ones and their versions. Their jobs are admitted as all jobs are."""

    @route(
        "api/models",
        "Served models, the newest first",
        scope=Scope.READ,
        answer=ModelList,
        query=(OWNER, Query("limit", "integer", "the most models to return", default=50, low=1, high=200)),
    )
    async def get(self) -> None:
        context = self.context
        found = context.store.models.models(self.requested_owner(), self.query_int("limit"))
        models = tuple(summary(context, model) for model in found)
        serving = context.serving
        self.reply(
            ModelList(models=models, open_allowed=serving.limits.open_allowed, front=serving.front.name)
        )

    @route(
        "api/models",
        "Serve a model, or a new version of it; with the same key again, the answer is the same model (200)",
        scope=Scope.SUBMIT,
        body=ModelSubmit,
        answer=ServedModel,
        status=201,
    )
    def post(self) -> None:
        context, request, owner = self.context, self.parse(ModelSubmit), self.user.name
        known = context.store.models.version_of_key(owner, request.name, request.idempotency_key)
        if known is not None:
            self.reply(summary(context, known))
            return
        if self.user.groups is not None:
            context.store.owners.note(owner, self.user.groups, context.clock())
        self._check_limits(request)
        version = NewVersion(
            key=request.idempotency_key,
            spec=self._replica(request),
            reason="a notebook sent it",
            run=request.run,
            value=request.value,
        )
        model = context.serving.manager.submit(owner, request, version)
        self.reply(summary(context, model), 201)

    def _replica(self, request: ModelSubmit) -> JobSpec:
        """Return the request of each replica's job, admitted as any job. Raises ApiError, REFUSALS."""
        serve = ReplicaOf(
            model=0,
            name=request.name,
            version=0,
            variable=request.variable,
            signature=request.signature,
            options=request.options,
        )
        try:
            spec = as_replica(request.spec, serve)
        except ValidationError as error:
            raise invalid_body(error) from error
        admitted = self._admitted(spec.model_copy(update={"serve": None}))
        # A limit on the time of jobs is not one of models.
        return admitted.model_copy(update={"serve": serve, "timeout_s": None})

    def _check_limits(self, request: ModelSubmit) -> None:
        """Raise ApiError if the owner may not have that."""
        context, limits = self.context, self.context.serving.limits
        check_open(context, request.is_open)
        if request.options.request_bytes > limits.request_bytes:
            asked = request.options.request_bytes
            message = f"request_bytes is {asked}; this cluster allows {limits.request_bytes}"
            raise ApiError(422, "request_too_long", message, "ask for less, or an admin for more")
        known = context.store.models.named(self.user.name, request.name)
        replicas = request.replicas or (known.replicas if known is not None else 1)
        check_replicas(context, self.user.name, request.name, replicas)


def check_open(context: Context, is_open: bool | None) -> None:
    """Raise ApiError (403) if a model shall be open and this cluster does not let it."""
    if is_open and not context.serving.limits.open_allowed:
        message = "this cluster does not let models be open to everybody"
        raise ApiError(
            403, "open_models_off", message, "use --shared for all users of the hub, or ask an admin"
        )


def check_replicas(context: Context, owner: str, name: str, replicas: int) -> None:
    """Raise ApiError (422) if an owner's models would have too many replicas."""
    most = context.serving.limits.replicas
    count = context.store.models.wanted_replicas(owner, but=name) + replicas
    if count > most:
        message = f"{owner}'s models would have {count} replicas; this cluster allows {most} of one user"
        raise ApiError(
            422, "too_many_replicas", message, "%serve stop NAME or %serve scale NAME 1 frees some"
        )


class ModelBase(UserHandler):
    """Base of handlers of one model."""

    def model_record(self, model_id: str) -> ModelRecord:
        """Return a model of the user; admins also get other users' models. Raises ApiError (404)."""
        model = self.context.store.models.model(int(model_id))
        if model is None or (model.owner != self.user.name and not self.user.has(Scope.ADMIN)):
            raise ApiError(404, "unknown_model", f"there is no model {model_id} of yours", _HINT)
        return model


class ModelHandler(ModelBase, HeldHandler):
    @route(
        "api/models/{model_id}",
        "A model with its versions and replicas; the answer is held while `have` is the newest version",
        scope=Scope.READ,
        answer=ModelDetails,
        query=(Query("have", "string", "the version that the caller has; without it, no answer is held"),),
    )
    async def get(self, model_id: str) -> None:
        model = self.model_record(model_id)
        if not self.get_query_argument("have", "") or model.ended_at is not None:
            self.reply(details(self.context, model.id))
            return
        context = self.context
        with context.streams.one_more(("models", self.user.name), context.limits.polls, "polls of models"):
            found = await self.held(
                lambda: details(context, model.id), context.serving.manager.changes, model.id
            )
        self.reply(found)

    @route(
        "api/models/{model_id}",
        "Change what is wanted of a model: replicas, the active version, who may ask",
        scope=Scope.SUBMIT,
        body=ModelChange,
        answer=ServedModel,
    )
    def patch(self, model_id: str) -> None:
        model, change, context = self.model_record(model_id), self.parse(ModelChange), self.context
        if model.stopped_at is not None:
            raise ApiError(409, "model_stopped", f"{model.name} is stopped", "serve it again: %serve")
        check_open(context, change.is_open)
        if change.replicas is not None:
            check_replicas(context, model.owner, model.name, change.replicas)
        try:
            context.serving.manager.change(model, change, self.user.name)
        except ModelRefused as refused:
            raise ApiError(409, refused.code, str(refused), refused.hint) from refused
        self.reply(summary(context, self.model_record(model_id)))

    @route("api/models/{model_id}", "Stop a model", scope=Scope.SUBMIT, answer=ServedModel)
    def delete(self, model_id: str) -> None:
        self.context.serving.manager.stop(self.model_record(model_id), self.user.name)
        self.reply(summary(self.context, self.model_record(model_id)))


class ModelEventsHandler(ModelBase):
    @route(
        "api/models/{model_id}/events",
        "A model's history, the newest first",
        scope=Scope.READ,
        answer=ModelEvents,
    )
    def get(self, model_id: str) -> None:
        found = self.context.store.models.events(self.model_record(model_id).id)
        events = (ModelEvent(id=one.id, at=one.at, kind=one.kind, text=one.text) for one in found)
        self.reply(ModelEvents(events=tuple(events)))


def summary(context: Context, model: ModelRecord, view: ModelView | None = None) -> ServedModel:
    """Return a model without its versions and replicas. view: if it was read already."""
    manager, figures = context.serving.manager, None
    if model.stopped_at is None:  # Another one may have its name since.
        figures = context.serving.front.figures.of(model_key(model.owner, model.name))
    shown = replace(model, is_open=model.is_open and context.serving.limits.open_allowed)
    return model_message(shown, view or manager.view(model), manager.note(model.id), figures)


def details(context: Context, model_id: int) -> ModelDetails:
    model = context.store.models.model(model_id)
    assert model is not None  # noqa: S101 - rows are never deleted
    view = context.serving.manager.view(model)
    jobs = context.store.jobs_by_id([one.job_id for one in view.present])
    shown = {job.id: context.status_cache.job(job) for job in jobs}
    versions = context.store.models.versions(model_id)
    return model_details(summary(context, model, view), versions, view, shown, context.serving.front.name)
