"""For who runs the cluster: health, metrics, the API's description."""

from __future__ import annotations

from typing import Any

from minicluster.wire import WIRE_VERSION
from minicluster_hub.web.auth import HubHandler
from minicluster_hub.web.base import ServiceHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.api.messages import Health
from minicluster_hub.web.openapi import document
from minicluster_hub.web.route import Scope

HUB_METRICS_SCOPE = "read:metrics"


class OpenHandler(ServiceHandler):
    """Base of what tells nothing about anyone."""

    async def identify(self) -> None:
        return None


class HealthHandler(OpenHandler):
    """Says whether the database answers."""

    def get(self) -> None:
        self.context.store.ping()
        aside = len(self.context.reconciler.quarantine.set_aside())
        self.reply(Health(ok=True, wire_version=WIRE_VERSION, set_aside=aside))


class MetricsHandler(HubHandler):
    """For Prometheus, which comes with a hub service's token: any kind of caller with the scope."""

    def admit(self, model: dict[str, Any]) -> None:
        if not self.hub_auth.check_scopes({HUB_METRICS_SCOPE, Scope.ADMIN.value}, model):
            message = f"the token has neither of the scopes {HUB_METRICS_SCOPE} and {Scope.ADMIN}"
            raise ApiError(403, "scope_missing", message)

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(self.context.metrics.text())


class OpenApiHandler(OpenHandler):
    """The document that the table of routes gives."""

    def get(self) -> None:
        # The table holds this handler itself, so it cannot be imported above.
        from minicluster_hub.api.table import API_ROUTES

        self.set_header("Content-Type", "application/json")
        self.finish(document(API_ROUTES, self.context.prefix))
