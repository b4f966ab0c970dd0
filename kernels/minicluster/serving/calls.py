"""The requests about served models to the job service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.wire import Message
from minicluster.wire.serving.models import (
    ModelChange,
    ModelDetails,
    ModelEvents,
    ModelList,
    ModelSubmit,
    ServedModel,
)

if TYPE_CHECKING:
    import httpx

M = TypeVar("M", bound=Message)
_HELD_S = 60.0
_MOST_LISTED = 200
_OF_SERVICE = frozenset({401, 403, 429, 502, 503})
"""Statuses that the job service or a proxy answers for; it asks again after some of them."""
_OF_MODEL = frozenset(range(400, 600)) - _OF_SERVICE
_MORE_S = 10.0
"""How much longer than the model a request may take: the way there and back."""


class ModelCalls:
    """What a notebook asks about its models."""

    def __init__(self, service: JobServiceClient) -> None:
        self._service = service

    def submit(self, request: ModelSubmit) -> ServedModel:
        """Serve a model, or a new version of it; with the same key again, it is the same one."""
        content = request.model_dump_json(exclude_none=True)
        return self._message(ServedModel, "POST", "api/models", content=content)

    def models(self) -> tuple[ServedModel, ...]:
        """Return the user's models, the newest first."""
        return self.listed().models

    def listed(self) -> ModelList:
        return self._message(ModelList, "GET", "api/models", params={"limit": _MOST_LISTED})

    def named(self, name: str) -> ServedModel:
        """Return the newest of the user's models with this name. Raises ServiceError."""
        models = self.models()
        found = next((one for one in models if one.name == name), None)
        if found is None:
            have = ", ".join(dict.fromkeys(one.name for one in models)) or "none"
            raise ServiceError(f"You serve no model {name!r}.", f"Your models: {have}", "unknown_model")
        return found

    def details(self, model_id: int, have: str = "") -> ModelDetails:
        """Return a model; with `have`, wait up to 25 s for a newer version than that."""
        params = {"have": have} if have else {}
        return self._message(ModelDetails, "GET", f"api/models/{model_id}", params=params, timeout=_HELD_S)

    def change(self, model_id: int, change: ModelChange) -> ServedModel:
        content = change.model_dump_json(exclude_none=True)
        return self._message(ServedModel, "PATCH", f"api/models/{model_id}", content=content)

    def stop(self, model_id: int) -> ServedModel:
        return self._message(ServedModel, "DELETE", f"api/models/{model_id}")

    def events(self, model_id: int) -> ModelEvents:
        return self._message(ModelEvents, "GET", f"api/models/{model_id}/events")

    def predict(self, model: ServedModel, body: bytes, timeout_s: float) -> Any:
        """Ask a model with plain JSON; return what it answers. Raises ServiceError.

        timeout_s: how long the model may take.
        """
        answer = self._service.ask(
            "POST", f"{model.path}predict", passing=_OF_MODEL, content=body, timeout=timeout_s + _MORE_S
        )
        if answer.status_code >= 400 and (said := _said(answer)):
            hint = f"%serve logs {model.name} has the error." if answer.status_code == 500 else ""
            raise ServiceError(f"{model.name}: {said}", hint, "model_refused")
        return self._service.check(answer).json()

    def url(self, model: ServedModel) -> str:
        """Return the address of a model's answers."""
        return self._service.link(model.path)

    def page(self, model_id: int) -> str:
        """Return the address of a model's page for browsers."""
        return self._service.browser_path(f"models/{model_id}")

    def _message(self, model: type[M], method: str, path: str, **more: Any) -> M:
        try:
            return model.model_validate_json(self._service.ask(method, path, **more).content)
        except ServiceError as error:
            if error.code != "unknown_path":
                raise
            hint = "An admin upgrades it."
            raise ServiceError("This cluster's release serves no models yet.", hint, error.code) from None


def _said(answer: httpx.Response) -> str:
    """Return what a replica says of an error; "" if it is the job service's own answer."""
    try:
        said = answer.json().get("error")
    except (ValueError, AttributeError):
        return ""
    return said if isinstance(said, str) else ""
