"""Placement of notebook servers, for the spawner: only its token has the scope."""

from __future__ import annotations

from typing import Any

from minicluster.wire import PlaceServer, ServerList, ServerPlacement
from minicluster_hub.web.auth import HubHandler, UserHandler
from minicluster_hub.web.errors import scope_missing
from minicluster_hub.web.route import Query, Scope, Who, route

UNNAMED = "-"
"""Stands for the server without a name in a path."""


class SpawnerHandler(HubHandler):
    """Base of handlers for the spawner, whose scope covers all users' servers."""

    who = Who.SPAWNER

    def admit(self, model: dict[str, Any]) -> None:
        if not self.hub_auth.check_scopes({Scope.PLACE.value}, model):
            hint = "only the hub's spawner has it; users start servers on the hub's page"
            raise scope_missing(Scope.PLACE, hint)


class ServersHandler(SpawnerHandler):
    @route("api/servers", "Placements of notebook servers", scope=Scope.PLACE, answer=ServerList)
    def get(self) -> None:
        self.reply(ServerList(servers=self.context.server_places.all()))


class ServerHandler(SpawnerHandler):
    @route(
        "api/servers/{owner}/{server}",
        "Place a notebook server: its node and its GPUs; the server without a name is `-`",
        scope=Scope.PLACE,
        body=PlaceServer,
        answer=ServerPlacement,
    )
    async def put(self, owner: str, server: str) -> None:
        ask = self.parse(PlaceServer)
        place = await self.context.server_places.place(owner, _name(server), ask)
        self.reply(place.model_copy(update={"environment": dict(self.context.job_environment)}))

    @route(
        "api/servers/{owner}/{server}",
        "Free the slots of a stopped server",
        scope=Scope.PLACE,
        status=204,
        query=(Query("place", "integer", "free only the placement with this id; any if not given"),),
    )
    async def delete(self, owner: str, server: str) -> None:
        await self.context.server_places.end(owner, _name(server), self.query_int("place") or None)
        self.set_status(204)
        self.finish()


class GpusHandler(UserHandler):
    @route(
        "api/gpus/{server}",
        "Get back the GPUs that your notebook server left idle; the server without a name is `-`",
        scope=Scope.SUBMIT,
        answer=ServerPlacement,
    )
    async def post(self, server: str) -> None:
        self.reply(await self.context.server_places.again(self.user.name, _name(server)))


def _name(server: str) -> str:
    return "" if server == UNNAMED else server
