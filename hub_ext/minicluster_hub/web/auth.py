"""Hub users: found through the hub's API without blocking the loop, their scopes checked each time."""

from __future__ import annotations

import hmac
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuth, HubOAuthenticated
from tornado.httputil import HTTPServerRequest
from tornado.web import HTTPError, RequestHandler

from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.web.base import JobServiceHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError, scope_missing, unknown_job
from minicluster_hub.web.route import Route, Scope, Who

_SESSION_ID_CHARS = 64
"""JupyterHub's have 32."""


class ServiceAuth(HubOAuth):
    """The hub's word about tokens, kept for a while, also that it does not know one."""

    def get_session_id(self, handler: RequestHandler) -> str:
        """Return the login session's id, which is a part of the cache's key: a stranger may send 16 KB."""
        return super().get_session_id(handler)[:_SESSION_ID_CHARS]


@dataclass(frozen=True, slots=True)
class User:
    """Who asks, as the hub knows them. Scopes count, the hub's `admin` flag does not."""

    name: str
    model: dict[str, Any]
    hub_auth: HubOAuth

    @property
    def groups(self) -> tuple[str, ...] | None:
        """Of the hub; None if it did not tell."""
        told = self.model.get("groups")
        return None if told is None else tuple(told)

    def has(self, scope: Scope) -> bool:
        """Say whether the token has a scope: for its own user, or (admin) for everyone."""
        wanted = scope.value if scope is Scope.ADMIN else f"{scope.value}!user={self.name}"
        return bool(self.hub_auth.check_scopes({wanted}, self.model))


class HubHandler(HubOAuthenticated, JobServiceHandler):
    """Base of what users and services of the hub call."""

    who = Who.USER

    def initialize(self, context: Context, routes: Mapping[str, Route]) -> None:
        super().initialize(context, routes)
        self.hub_auth = context.hub_auth

    @property
    def xsrf_token(self) -> bytes:
        return super().xsrf_token or b""

    async def identify(self) -> None:
        model = await self.hub_model()
        if model is None:
            self.refuse_unknown()
            return
        # The XSRF token counts only for cookies; `get_user` has marked those who sent a token.
        self.check_xsrf()
        self.admit(model)

    @abstractmethod
    def admit(self, model: dict[str, Any]) -> None:
        """Raise ApiError unless whom the hub knows as `model` may do this."""

    async def hub_model(self) -> dict[str, Any] | None:
        """Return what the hub says of the caller, None if it knows nobody.

        HubAuth's own `current_user` would ask synchronously and stop the event loop.
        """
        try:
            model = await self.hub_auth.get_user(self, sync=False)
        except HTTPError as error:
            raise ApiError(
                503, "hub_unreachable", "the hub did not say who you are", "try again in a moment"
            ) from error
        self.current_user = model
        return model

    def refuse_unknown(self) -> None:
        """Answer a caller that the hub does not know."""
        if self.led_home():
            return
        if not self.hub_auth.get_token(self, in_cookie=False) and self.hub_auth.get_token(self):
            self.check_xsrf()
        raise ApiError(
            401,
            "not_authenticated",
            "the hub does not know this token or login",
            "log in at the hub, or send the header `Authorization: token <a hub token>`",
        )

    def led_home(self) -> bool:
        """Send a person who came by the hub's name to the service's own, where a login is kept.

        It has one where users have names of their own; links in notebooks outside of the hub lead here.
        """
        home = urlsplit(self.context.hub_auth.oauth_redirect_uri)
        visit = self.request.method == "GET" and self.request.headers.get("Sec-Fetch-Mode") == "navigate"
        if home.netloc in ("", self.request.host) or not visit:
            return False
        self.redirect(f"{home.scheme}://{home.netloc}{self.request.uri}")
        return True

    def check_xsrf_cookie(self) -> None:
        """Raise HTTPError unless the header holds the page's token, or a person visits a page.

        Stricter than the hub's own check: a token in a URL does not count, since URLs stand in logs, and
        neither does a read of the mode no-cors: a script of the same origin reads its answer, token and all.
        """
        if getattr(self, "_token_authenticated", False) or _is_visit(self.request):
            return
        told = self.request.headers.get("X-XSRFToken", "")
        if not hmac.compare_digest(told.encode(), self.xsrf_token):
            raise HTTPError(403, "the header X-XSRFToken does not hold this page's token")

    def check_xsrf(self) -> None:
        """Raise ApiError if a cookie alone, without its page's XSRF token, would let someone in."""
        try:
            self.check_xsrf_cookie()
        except HTTPError as error:
            hint = "reload the page, or send a token in the header instead of a cookie"
            raise ApiError(403, "xsrf", str(error.log_message), hint) from error


class UserHandler(HubHandler):
    """Base of what users and their notebooks call."""

    user: User

    async def identify(self) -> None:
        await super().identify()
        if not self._finished:
            await self.slow_down(self.user.name, self.context.limits.user_rate)

    def admit(self, model: dict[str, Any]) -> None:
        if model.get("kind") != "user":
            raise ApiError(403, "not_a_user", "jobs belong to users; this token is of a service")
        self.user = User(model["name"], model, self.context.hub_auth)
        if self.declared.scope is not None:
            self.require(self.declared.scope)

    def require(self, scope: Scope) -> None:
        if not self.user.has(scope):
            raise scope_missing(scope)

    def job_record(self, job_id: str, *, admins: bool = True) -> JobRecord:
        """Return a job of the user's own; admins also get others'. Raises ApiError (404)."""
        record = self.context.store.job(int(job_id))
        if record is None:
            raise unknown_job(job_id)
        if record.owner != self.user.name and not (admins and self.user.has(Scope.ADMIN)):
            raise unknown_job(job_id)
        return record

    def owner_asked(self) -> str | None:
        """Return whose jobs are asked for: the user's own, or None for everyone's (admins)."""
        if self.get_query_argument("owner", "") != "all":
            return self.user.name
        self.require(Scope.ADMIN)
        return None


def _is_visit(request: HTTPServerRequest) -> bool:
    """Tell whether a browser shows the answer in a window of its own, where no other page's script reads it.

    Browsers do not say so to addresses of plain HTTP other than their own machine's.
    """
    mode = request.headers.get("Sec-Fetch-Mode", "navigate")
    shown_in = request.headers.get("Sec-Fetch-Dest", "document")
    return request.method in ("GET", "HEAD") and mode == "navigate" and shown_in == "document"
