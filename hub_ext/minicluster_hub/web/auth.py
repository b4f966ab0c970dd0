"""Authenticates hub users through the hub's API without blocking the loop, and checks scopes per request."""

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
from minicluster_hub.web.base import ServiceHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError, scope_missing, unknown_job
from minicluster_hub.web.route import Route, Scope, Who

_SESSION_ID_CHARS = 64
"""Longest session id that is cached; JupyterHub's have 32 characters."""
_OF_THE_CLUSTER = (Scope.ADMIN, Scope.POLICY)
"""Scopes that are not about the jobs of one user."""


class ServiceAuth(HubOAuth):
    """Caches the hub's answers about tokens for a while, even that a token is unknown."""

    def get_session_id(self, handler: RequestHandler) -> str:
        """Return the login session's id, cut: it is part of the cache's key, and anybody may send 16 KB."""
        return super().get_session_id(handler)[:_SESSION_ID_CHARS]


@dataclass(frozen=True, slots=True)
class User:
    """The calling user, as described by the hub. Only scopes grant rights, not the hub's `admin` flag."""

    name: str
    model: dict[str, Any]
    hub_auth: HubOAuth

    @property
    def groups(self) -> tuple[str, ...] | None:
        """The user's groups in the hub; None if the hub did not say."""
        groups = self.model.get("groups")
        return None if groups is None else tuple(groups)

    def has(self, scope: Scope) -> bool:
        """Return whether the token has a scope: one of _OF_THE_CLUSTER, or any other for its own user."""
        if scope in _OF_THE_CLUSTER:
            # A hub of the last release does not report the narrower scopes that an admin's scope includes.
            wanted = {scope.value, Scope.ADMIN.value}
        else:
            wanted = {f"{scope.value}!user={self.name}"}
        return bool(self.hub_auth.check_scopes(wanted, self.model))


class HubHandler(HubOAuthenticated, ServiceHandler):
    """Base of handlers that users and services of the hub call."""

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
        # Only cookies need an XSRF token; `get_user` has marked requests that carry a token.
        self.check_xsrf()
        self.admit(model)

    @abstractmethod
    def admit(self, model: dict[str, Any]) -> None:
        """Raise ApiError unless the caller may do this. model: the hub's description of the caller."""

    async def hub_model(self) -> dict[str, Any] | None:
        """Return the hub's description of the caller; None if the hub does not know the token or login.

        HubAuth's own `current_user` would call the hub synchronously and block the event loop.
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
        if self.redirected():
            return
        if not self.hub_auth.get_token(self, in_cookie=False) and self.hub_auth.get_token(self):
            self.check_xsrf()
        raise ApiError(
            401,
            "not_authenticated",
            "the hub does not know this token or login",
            "log in at the hub, or send the header `Authorization: token <a hub token>`",
        )

    def redirected(self) -> bool:
        """Redirect a browser from the hub's domain to the service's own, which has the login cookie.

        With per-user subdomains the service has its own domain. Links in notebooks outside of the hub name
        the hub's domain.
        """
        own = urlsplit(self.context.hub_auth.oauth_redirect_uri)
        visit = self.request.method == "GET" and self.request.headers.get("Sec-Fetch-Mode") == "navigate"
        if own.netloc in ("", self.request.host) or not visit:
            return False
        self.redirect(f"{own.scheme}://{own.netloc}{self.request.uri}")
        return True

    def check_xsrf_cookie(self) -> None:
        """Raise HTTPError unless the header has the page's token, or a browser navigates to a page.

        It is stricter than the hub's. A token in a URL does not count, since logs contain URLs. A read with
        mode no-cors needs the token, too: a script of the same origin could read the answer.
        """
        if getattr(self, "_token_authenticated", False) or _is_visit(self.request):
            return
        sent = self.request.headers.get("X-XSRFToken", "")
        if not hmac.compare_digest(sent.encode(), self.xsrf_token):
            raise HTTPError(403, "the header X-XSRFToken does not hold this page's token")

    def check_xsrf(self) -> None:
        """Raise ApiError if a request has a cookie but not the page's XSRF token."""
        try:
            self.check_xsrf_cookie()
        except HTTPError as error:
            hint = "reload the page, or send a token in the header instead of a cookie"
            raise ApiError(403, "xsrf", str(error.log_message), hint) from error


class UserHandler(HubHandler):
    """Base of handlers that users and their notebooks call."""

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
        """Return a job of the user; admins also get other users' jobs. Raises ApiError (404)."""
        record = self.context.store.job(int(job_id))
        if record is None:
            raise unknown_job(job_id)
        if record.owner != self.user.name and not (admins and self.user.has(Scope.ADMIN)):
            raise unknown_job(job_id)
        return record

    def requested_owner(self) -> str | None:
        """Return the owner whose jobs are requested: the user, or None for all owners (only admins)."""
        if self.get_query_argument("owner", "") != "all":
            return self.user.name
        self.require(Scope.ADMIN)
        return None


def _is_visit(request: HTTPServerRequest) -> bool:
    """Return whether a browser shows the answer in its own window, where no other page's script reads it.

    Over plain HTTP browsers send these headers only to their own machine.
    """
    mode = request.headers.get("Sec-Fetch-Mode", "navigate")
    shown_in = request.headers.get("Sec-Fetch-Dest", "document")
    return request.method in ("GET", "HEAD") and mode == "navigate" and shown_in == "document"
