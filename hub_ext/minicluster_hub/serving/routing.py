"""Where requests to models go: what the manager decides, and a front carries out."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from minicluster.wire.serving.replicas import ReplicaOptions, Signature

SECRET_HEADER = "Minicluster-Replica"  # noqa: S105 - the name of a header


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a replica answers."""

    job_id: int
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """A model that is served. secret: what its replicas want to see in each request.

    key: what its address has, as the front compares it.
    """

    model_id: int
    owner: str
    name: str
    version: int
    secret: str
    shared: bool
    is_open: bool
    options: ReplicaOptions
    signature: Signature
    endpoints: tuple[Endpoint, ...] = ()

    @property
    def key(self) -> str:
        return model_key(self.owner, self.name)


def model_key(owner: str, name: str) -> str:
    """Return OWNER/NAME as it is in an address."""
    return f"{quote(owner, safe='')}/{quote(name, safe='')}"


def replica_secret(secret: bytes, model_id: int) -> str:
    """Return the secret of a model's replicas. No other model's replica knows it."""
    return hmac.new(secret, f"model-{model_id}".encode(), hashlib.sha256).hexdigest()


class Front(Protocol):
    """Leads requests to replicas."""

    async def lead(self, route: ModelRoute) -> None:
        """Lead a model's requests to these replicas from now on; return when no new one goes elsewhere.

        Raises OSError.
        """
        ...

    async def drop(self, model_id: int) -> None:
        """Lead no more requests to a model."""
        ...
