"""Whom a token is for, and which versions are on this side."""

from __future__ import annotations

from importlib.metadata import version

from minicluster.wire import WIRE_VERSION, About
from minicluster_hub.images.catalogue import ImageNotAllowed
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError


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
                ranks=self.context.store.environments.of(image) or self.context.board.environment(),
            )
        )
