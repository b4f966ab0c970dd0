"""Who answers a request: this service or, while it stands by, the one that leads.

What is read comes from the database and the shared disk, so it is answered here. What changes something,
and what only the leader knows, is passed on, body and answer piece by piece. Agents are told to go to the
leader themselves: they know all services, and the way is shorter.
"""

from __future__ import annotations

import ssl

from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Router
from tornado.web import Application

from minicluster_hub.duty import Duty
from minicluster_hub.handlers.errors import ApiError
from minicluster_hub.handlers.pass_on import PASSED_ON, PassOn, Refusal

_OF_THE_LEADER = ("nodes", "api/nodes", "api/events", "api/servers", "metrics", "api/data")
"""What is read from what only the leader sees: the engine's nodes, places, counts."""
_TASKS = ("api/tasks/", "api/keepers/")


class Door(Router):
    """Takes each request to who answers it. tls: what one job service shows another."""

    def __init__(
        self, inside: Application, duty: Duty, prefix: str, tls: ssl.SSLContext | None = None
    ) -> None:
        self._inside = inside
        self._duty = duty
        self._prefix = prefix
        self._tls = tls

    def find_handler(self, request: HTTPServerRequest, **_kwargs: object) -> HTTPMessageDelegate:
        path = request.path.removeprefix(self._prefix)
        if self._duty.leads or not _is_for_the_leader(request.method or "", path):
            return self._inside.find_handler(request)
        if path.startswith(_TASKS):
            return Refusal(request, not_leading(self._duty.leader_url))
        if not self._duty.leader_url or PASSED_ON in request.headers:
            return Refusal(request, nobody_leads())
        return PassOn(request, self._duty.leader_url, self._duty.moved, nobody_leads(), self._tls)


def _is_for_the_leader(method: str, path: str) -> bool:
    if method not in ("GET", "HEAD"):
        return True
    return path.startswith(_TASKS) or path in _OF_THE_LEADER or path.endswith("/why")


def not_leading(leader_url: str) -> ApiError:
    told = f"the one at {leader_url} does" if leader_url else "which one does is not known yet"
    return ApiError(
        503, "not_leading", f"this job service stands by; {told}", "ask the next one of your list"
    )


def nobody_leads() -> ApiError:
    return ApiError(
        503, "no_leader", "no job service leads at this moment; one takes over within seconds", "try again"
    )
