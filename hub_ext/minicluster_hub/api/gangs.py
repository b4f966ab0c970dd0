"""Gangs that are started before there is a job for them."""

from __future__ import annotations

from minicluster.wire.jobs import GangToPrepare, PreparedGang
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.route import Scope, route


class GangsHandler(UserHandler):
    @route(
        "api/gangs",
        "Start a gang for the caller's next cell, if slots are free and nobody waits",
        scope=Scope.SUBMIT,
        body=GangToPrepare,
        answer=PreparedGang,
    )
    def post(self) -> None:
        context, asked = self.context, self.parse(GangToPrepare)
        image = context.catalogue.resolve(asked.image)
        places = context.reconciler.prepare(self.user.name, image, context.clock())
        if places:
            context.reconciler.wake()
        self.reply(PreparedGang(nodes=tuple(node for node, _ in places)))
