"""For who runs the cluster: health, metrics, the API's description."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from minicluster.wire import WIRE_VERSION, About
from minicluster_hub.api.messages import Health, NodeAddresses
from minicluster_hub.images.catalogue import ImageNotAllowed
from minicluster_hub.web.auth import HubHandler, UserHandler
from minicluster_hub.web.base import ServiceHandler
from minicluster_hub.web.errors import ApiError
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
        aside = len(self.context.quarantine.set_aside())
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


# Whom a token is for, and which versions are on this side.


class AboutHandler(UserHandler):
    def get(self) -> None:
        try:
            image = self.context.catalogue.resolve(self.get_query_argument("image", None))
        except ImageNotAllowed as refused:
            raise ApiError(422, "image_not_allowed", str(refused), refused.hint) from refused
        self.reply(
            About(
                user=self.user.name,
                scopes=tuple(self.user.model.get("scopes", ())),
                wire_version=WIRE_VERSION,
                release=version("minicluster"),
                ranks=self.context.store.environments.of(image) or self.context.status_cache.environment(),
            )
        )


# The cluster's nodes and who holds their slots.


class NodesHandler(UserHandler):
    def get(self) -> None:
        self.reply(self.context.status_cache.nodes())


class NodeAddressesHandler(OpenHandler):
    """For the nodes' firewalls, on the agents' port. Whoever is on the machines' network sees them anyway."""

    def get(self) -> None:
        nodes = self.context.status_cache.node_views()
        addresses = {node.address for node in nodes if node.address}
        addresses |= self.context.status_cache.data_set_tracker.addresses(node.name for node in nodes)
        self.reply(NodeAddresses(addresses=tuple(sorted(addresses))))
