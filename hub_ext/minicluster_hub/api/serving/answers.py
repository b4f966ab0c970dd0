"""The requests to models, as far as HAProxy does not take them: who may ask, and the way to a replica."""

from __future__ import annotations

import json
from typing import Any

from minicluster_hub.serving.front.passing import NoReplica, TooSlow
from minicluster_hub.serving.openapi import document
from minicluster_hub.serving.routing import ModelRoute
from minicluster_hub.web.auth import HubHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.route import Scope, route

_PATHS = "predict|openapi[.]json|v2|v2/.*"
_SANDBOX = "default-src 'none'; sandbox; frame-ancestors 'none'"


class AnswersHandler(HubHandler):
    """A request to a model: by a user or a service with a token, by a page of ours, or by anybody if it is
    open.
    """

    served: ModelRoute

    async def identify(self) -> None:
        # The path is the request's own: tornado hands it to the method only after this.
        owner, name = self.path_kwargs["owner"], self.path_kwargs["name"]
        found = self.context.serving.front.route(owner, name)
        if found is not None and found.is_open:
            self.served = found
            await self.slow_down(("open", self.request.remote_ip), self.context.limits.user_rate)
            return
        await super().identify()
        if self._finished:
            return
        if found is None or not self._may_ask(found):
            raise unknown_model(owner, name)
        self.served = found
        asker = self.current_user or {}
        await self.slow_down(("answers", asker.get("name", "")), self.context.limits.user_rate)

    def admit(self, model: dict[str, Any]) -> None:
        """Let the model decide: services of the hub may ask, too."""

    def _may_ask(self, served: ModelRoute) -> bool:
        """Whether the caller's scopes let it ask: those for the owner's models, or any if the model is
        shared.
        """
        asker, auth = self.current_user or {}, self.context.hub_auth
        owners = {f"{one.value}!user={served.owner}" for one in (Scope.MODELS, Scope.SUBMIT)}
        own = {f"{one.value}!user={asker.get('name', '')}" for one in (Scope.MODELS, Scope.READ)}
        return bool(auth.check_scopes(owners | own if served.shared else owners, asker))

    @property
    def body_limit_bytes(self) -> int:
        served: ModelRoute | None = getattr(self, "served", None)
        return super().body_limit_bytes if served is None else served.options.request_bytes

    @route(
        "answers/{owner}/{name}/{rest}",
        "What a model says of itself: its health, inputs and outputs, and its OpenAPI document",
        answer="application/json",
        parts={"rest": _PATHS},
    )
    async def get(self, owner: str, name: str, rest: str) -> None:
        if rest == "openapi.json":
            self._send(200, "application/json", json.dumps(document(self.served, self._url())).encode())
            return
        await self._pass_on(rest)

    @route(
        "answers/{owner}/{name}/{rest}",
        "Ask a model: predict with plain JSON, or v2/models/NAME/infer",
        body="application/json",
        answer="application/json",
        parts={"rest": _PATHS},
    )
    async def post(self, owner: str, name: str, rest: str) -> None:
        await self._pass_on(rest)

    async def _pass_on(self, rest: str) -> None:
        served, serving, began = self.served, self.context.serving, self.context.clock()
        if self._came_with_header():
            serving.front.allow(self.request.headers["Authorization"], served)
        status = 503
        try:
            given = {name: value for name, value in self.request.headers.items()}
            method = self.request.method or "GET"
            found = await serving.passing.ask(served, method, rest, given, bytes(self._body))
            status = found.status
        except NoReplica as gone:
            raise ApiError(503, "no_replica", str(gone), "try again in a moment", retry_after_s=1) from gone
        except TooSlow as slow:
            status = 504
            raise ApiError(504, "too_slow", str(slow), "its owner may raise --timeout") from slow
        finally:
            serving.front.count(served.key, status, self.context.clock() - began)
        for header, value in found.headers.items():
            self.set_header(header, value)
        self._send(found.status, found.content_type, found.body)

    def _came_with_header(self) -> bool:
        """Whether the token in the header is what let the caller in, and nothing beside it."""
        by_token = getattr(self, "_token_authenticated", False) and "token" not in self.request.arguments
        return by_token and "Authorization" in self.request.headers

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        """Answer with data: the owner's code made it, and it is at the hub's address."""
        self.set_status(status)
        self.set_header("Content-Type", content_type)
        self.set_header("Content-Security-Policy", _SANDBOX)
        self.finish(body)

    def _url(self) -> str:
        """Return the address of the model's answers, as the asker sees it."""
        path = self.request.path.removesuffix("/openapi.json")
        return f"{self.request.protocol}://{self.request.host}{path}"


def unknown_model(owner: str, name: str) -> ApiError:
    """Return the same answer for a missing model and for one that the caller may not ask."""
    message = f"there is no model {name[:80]} of {owner[:80]} that you may ask"
    hint = f"it may be stopped, or not shared; a token needs the scope {Scope.MODELS.value}"
    return ApiError(404, "unknown_model", message, hint)
