"""The cluster's nodes and who holds their slots."""

from __future__ import annotations

from minicluster_hub.handlers.auth import UserHandler


class NodesHandler(UserHandler):
    def get(self) -> None:
        self.reply(self.context.board.nodes())
