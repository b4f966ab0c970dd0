"""A served model as the notebook has it: its address, its state, and a way to ask it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minicluster.serving import tensors
from minicluster.serving.calls import ModelCalls
from minicluster.serving.view import curl, model_html, model_text, python, version_of
from minicluster.wire.serving.models import ModelChange, ModelDetails, ModelState, ModelVersion
from minicluster.wire.serving.replicas import ReplicaOptions


class LiveModel:
    """What `%serve` returns."""

    def __init__(self, calls: ModelCalls, details: ModelDetails) -> None:
        self._calls = calls
        self._details = details

    @property
    def id(self) -> int:
        return self._details.model.id

    @property
    def name(self) -> str:
        return self._details.model.name

    @property
    def details(self) -> ModelDetails:
        """All that the service knows of it, now."""
        self._details = self._calls.details(self.id)
        return self._details

    @property
    def state(self) -> ModelState:
        return self.details.model.state

    @property
    def version(self) -> int:
        """The version that answers; 0: none does."""
        return self.details.model.serving

    @property
    def versions(self) -> tuple[ModelVersion, ...]:
        """Its versions, the newest first."""
        return self.details.versions

    @property
    def url(self) -> str:
        """The address of its answers; add predict, or v2/models/NAME/infer."""
        return self._calls.url(self._details.model)

    @property
    def curl(self) -> str:
        """A command that asks it."""
        return self._example(curl)

    @property
    def python(self) -> str:
        """Lines of Python that ask it."""
        return self._example(python)

    def predict(self, value: Any) -> Any:
        """Ask it over HTTP, with this notebook's token; return its answer as JSON has it.

        Raises ServiceError.
        """
        version = version_of(self._details)
        timeout_s = version.options.timeout_s if version is not None else ReplicaOptions().timeout_s
        return self._calls.predict(self._details.model, tensors.as_json(value), timeout_s)

    def scale(self, replicas: int) -> None:
        """Have this number of replicas."""
        self._calls.change(self.id, ModelChange(replicas=replicas))

    def back(self, version: int | None = None) -> None:
        """Serve an earlier version again: by default the one before."""
        self._calls.change(self.id, ModelChange(active_version=version or _version_before(self.details)))

    def stop(self) -> None:
        """Serve it no more; requests that replicas have are answered."""
        self._calls.stop(self.id)

    def _example(self, write: Callable[..., str]) -> str:
        version = version_of(self._details)
        if version is None:
            return self.url
        return write(self.url, version.signature, is_open=self._details.model.is_open)

    def __repr__(self) -> str:
        return model_text(self.details, self.url)

    def _repr_html_(self) -> str:
        return model_html(self.details, self.url, self._calls.page(self.id))


def _version_before(details: ModelDetails) -> int:
    """Return the version before the one that is wanted. Raises OptionWrong."""
    from minicluster.options import OptionWrong

    older = [one.number for one in details.versions if one.number < details.model.active and not one.error]
    if not older:
        raise OptionWrong(
            f"{details.model.name} has no version before {details.model.active}.",
            f"%serve versions {details.model.name} shows all.",
        )
    return max(older)
