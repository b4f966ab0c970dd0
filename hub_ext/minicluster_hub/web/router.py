"""Who answers a request: this service or, while it stands by, the one that leads.

A service that stands by knows only whether it is well itself. All else is passed on, body and answer piece by
piece: the policy, the queue, who may read what is in the leader's memory. Agents are told to go to the leader
themselves: they know all services, and the way is shorter.
"""

from __future__ import annotations

import ssl

from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Router
from tornado.web import Application

from minicluster_hub.control.leader_election import Duty
from minicluster_hub.web.errors import ApiError
from minicluster_hub.leader_proxy import PASSED_ON, PassOn, Refusal

_OWN = "health"
_TASKS = ("api/tasks/", "api/keepers/")


class Door(Router):
    """Takes each request to who answers it. tls: what one job service shows another.

    of_users: users come in here, too; else what is not for agents is not passed on, but unknown.
    """

    def __init__(
        self,
        inside: Application,
        duty: Duty,
        prefix: str,
        tls: ssl.SSLContext | None = None,
        *,
        of_users: bool = True,
    ) -> None:
        self._inside = inside
        self._duty = duty
        self._prefix = prefix
        self._tls = tls
        self._of_users = of_users

    def find_handler(self, request: HTTPServerRequest, **_kwargs: object) -> HTTPMessageDelegate:
        path = request.path.removeprefix(self._prefix)
        of_agents = path.startswith(_TASKS)
        if self._duty.leads or path == _OWN or not (of_agents or self._of_users):
            return self._inside.find_handler(request)
        if of_agents:
            return Refusal(request, not_leading(self._duty.leader_url))
        if not self._duty.leader_url or PASSED_ON in request.headers:
            return Refusal(request, nobody_leads())
        return PassOn(request, self._duty.leader_url, self._duty.moved, nobody_leads(), self._tls)


def not_leading(leader_url: str) -> ApiError:
    told = f"the one at {leader_url} does" if leader_url else "which one does is not known yet"
    return ApiError(
        503, "not_leading", f"this job service stands by; {told}", "ask the next one of your list"
    )


def nobody_leads() -> ApiError:
    return ApiError(
        503, "no_leader", "no job service leads at this moment; one takes over within seconds", "try again"
    )
