"""The requests about sweeps to the job service."""

from __future__ import annotations

from typing import Any, TypeVar

from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.wire import Message
from minicluster.wire.sweeps.sweeps import Importance, Sweep, SweepDetails, SweepList, SweepSubmit

M = TypeVar("M", bound=Message)


class SweepCalls:
    def __init__(self, service: JobServiceClient) -> None:
        self._service = service

    def submit(self, request: SweepSubmit) -> Sweep:
        """Submit a sweep; with the same key again, it is the same one."""
        content = request.model_dump_json(exclude_none=True)
        try:
            return self._message(Sweep, "POST", "api/sweeps", content=content)
        except ServiceError as error:
            if error.code != "unknown_path":
                raise
            hint = "An admin upgrades it; until then, loop over parameters with %%distribute --detach."
            raise ServiceError("This cluster's release has no sweeps yet.", hint, error.code) from None

    def sweeps(self) -> tuple[Sweep, ...]:
        """Return the user's sweeps, the newest first."""
        return self._message(SweepList, "GET", "api/sweeps").sweeps

    def sweep(self, sweep_id: int, have: str = "") -> SweepDetails:
        """Return a sweep with its trials; with `have`, wait up to 25 s for a newer version than that."""
        params = {"have": have} if have else {}
        return self._message(SweepDetails, "GET", f"api/sweeps/{sweep_id}", params=params)

    def stop(self, sweep_id: int) -> Sweep:
        return self._message(Sweep, "POST", f"api/sweeps/{sweep_id}/stop")

    def importance(self, sweep_id: int) -> Importance:
        return self._message(Importance, "GET", f"api/sweeps/{sweep_id}/importance")

    def _message(self, model: type[M], method: str, path: str, **more: Any) -> M:
        return model.model_validate_json(self._service.ask(method, path, **more).content)

    def page(self, sweep_id: int) -> str:
        """Return the address of a sweep's page for browsers."""
        return self._service.browser_path(f"sweeps/{sweep_id}")
