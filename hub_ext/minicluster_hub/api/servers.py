"""Places of notebook servers, for the spawner alone: its token has the scope, no user's has."""

from __future__ import annotations

from typing import Any

from minicluster.wire import PlaceServer, ServerList
from minicluster_hub.scheduling.servers import ServerRefused
from minicluster_hub.servers.placement import ServerPlaces
from minicluster_hub.web.auth import HubHandler, UserHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError, scope_missing
from minicluster_hub.web.route import Scope

UNNAMED = "-"
"""How a path writes the server without a name."""


class PlacesHandler(HubHandler):
    """Base: whose token has the scope for everybody's servers, not only for its own user's."""

    def admit(self, model: dict[str, Any]) -> None:
        if not self.hub_auth.check_scopes({Scope.PLACE.value}, model):
            raise scope_missing(Scope.PLACE, "only the hub's spawner has it; users start servers at the hub")

    @property
    def places(self) -> ServerPlaces:
        return _places(self.context)


class ServersHandler(PlacesHandler):
    """All places."""

    def get(self) -> None:
        self.reply(ServerList(servers=self.places.all()))


class ServerHandler(PlacesHandler):
    """One server's place."""

    async def put(self, owner: str, server: str) -> None:
        ask = self.parse(PlaceServer)
        try:
            place = await self.places.place(owner, _name(server), ask)
        except ServerRefused as refused:
            raise ApiError(409, refused.code, refused.message, refused.hint) from refused
        self.reply(place.model_copy(update={"environment": dict(self.context.job_environment)}))

    async def delete(self, owner: str, server: str) -> None:
        place_id = self.query_int("place", 0) or None
        await self.places.end(owner, _name(server), place_id)
        self.set_status(204)
        self.finish()


class GpusHandler(UserHandler):
    """The GPUs of one's own notebook server."""

    async def post(self, server: str) -> None:
        try:
            self.reply(await _places(self.context).again(self.user.name, _name(server)))
        except ServerRefused as refused:
            raise ApiError(409, refused.code, refused.message, refused.hint) from refused


def _places(context: Context) -> ServerPlaces:
    return ServerPlaces(
        context.store,
        context.reconciler,
        context.server_limits,
        context.clock,
        context.log,
        context.server_turns,
    )


def _name(server: str) -> str:
    return "" if server == UNNAMED else server
