"""Options of the job service about served models, for MiniclusterHub."""

from __future__ import annotations

from dataclasses import dataclass

from traitlets import Bool, Enum, Integer
from traitlets.config import Configurable

from minicluster.wire.serving.models import MOST_REPLICAS


@dataclass(frozen=True)
class ServingLimits:
    """open_allowed: whether anybody may ask a model that its owner opened. replicas: of all models of one
    owner.

    request_bytes: the most that an owner may let a request have.
    """

    open_allowed: bool = False
    replicas: int = 8
    request_bytes: int = 16 << 20


class ServingOptions(Configurable):
    """Who may ask served models, and how much of the cluster they may take."""

    open_models = Bool(
        False,
        help="Let owners open their models to everybody who reaches the hub, without a login. Each request "
        "uses the cluster, and runs the owner's code.",
    ).tag(config=True)
    model_replicas = Integer(
        8, min=1, max=MOST_REPLICAS, help="Most replicas of all models of one user. Each holds its slots."
    ).tag(config=True)
    model_request_bytes = Integer(
        16 << 20, min=1024, help="Most bytes of a request to a model; its owner may set less."
    ).tag(config=True)
    model_front = Enum(
        ("haproxy", "service"),
        "haproxy",
        help="What leads requests to replicas. haproxy: HAProxy, on the users' port, as soon as a model is "
        "served; if it is not installed, the job service. service: the job service itself, which is slower.",
    ).tag(config=True)

    @property
    def serving_limits(self) -> ServingLimits:
        return ServingLimits(self.open_models, self.model_replicas, self.model_request_bytes)
