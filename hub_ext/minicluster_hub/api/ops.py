"""For admins: health, metrics, versions, nodes, and the API's description."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from minicluster.wire import WIRE_VERSION, About, Message, NodeList
from minicluster_hub.engines.abilities import abilities
from minicluster_hub.web.auth import HubHandler, UserHandler
from minicluster_hub.web.base import OpenHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.openapi import document
from minicluster_hub.web.route import TEXT, OnFollower, Query, Scope, Who, route, routes_in

HUB_METRICS_SCOPE = "read:metrics"


class NodeAddresses(Message):
    """The addresses of all nodes, on all of their networks."""

    addresses: tuple[str, ...]


class Health(Message):
    """Whether the service works; if not, see its log.

    set_aside: the number of steps for a job, a gang or a task that fail repeatedly.
    """

    ok: bool
    wire_version: int
    set_aside: int = 0


class HealthHandler(OpenHandler):
    on_follower = OnFollower.ANSWER

    @route("health", "Whether the service works", answer=Health)
    def get(self) -> None:
        self.context.store.ping()
        aside = len(self.context.quarantine.exhausted())
        self.reply(Health(ok=True, wire_version=WIRE_VERSION, set_aside=aside))


class MetricsHandler(HubHandler):
    """For Prometheus, which has the token of a hub service. Any caller with the scope may read."""

    def admit(self, model: dict[str, Any]) -> None:
        if not self.hub_auth.check_scopes({HUB_METRICS_SCOPE, Scope.ADMIN.value}, model):
            message = f"the token needs the scope {HUB_METRICS_SCOPE} or {Scope.ADMIN}"
            raise ApiError(403, "scope_missing", message)

    @route("metrics", "For Prometheus", answer=TEXT)
    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(self.context.metrics.text())


class OpenApiHandler(OpenHandler):
    @route("api/openapi.json", "This document", answer="application/json")
    def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(document(routes_in("minicluster_hub.api"), self.context.prefix))


class AboutHandler(UserHandler):
    @route(
        "api/about",
        "The token's user, and the versions of service and ranks",
        scope=Scope.READ,
        answer=About,
        query=(Query("image", "string", "the image of the ranks; the cluster's default if not given"),),
    )
    def get(self) -> None:
        context = self.context
        image = context.catalogue.resolve(self.get_query_argument("image", None))
        self.reply(
            About(
                user=self.user.name,
                scopes=tuple(self.user.model.get("scopes", ())),
                wire_version=WIRE_VERSION,
                release=version("minicluster"),
                ranks=context.store.environments.of(image) or context.status_cache.environment(),
                abilities=abilities(context.status_cache.engine),
            )
        )


class NodesHandler(UserHandler):
    @route("api/nodes", "Nodes, and the holders of their slots", scope=Scope.READ, answer=NodeList)
    def get(self) -> None:
        self.reply(self.context.status_cache.nodes())


class NodeAddressesHandler(OpenHandler):
    """For the nodes' firewalls, on the agents' port. Machines on that network know the addresses anyway."""

    who = Who.MACHINE

    @route("api/nodes/addresses", "The nodes' addresses, for their firewalls", answer=NodeAddresses)
    def get(self) -> None:
        nodes = self.context.status_cache.node_views()
        addresses = {node.address for node in nodes if node.address}
        addresses |= self.context.data_set_tracker.addresses(node.name for node in nodes)
        self.reply(NodeAddresses(addresses=tuple(sorted(addresses))))
