"""Declares an endpoint at its handler's method, by the decorator `route`, and nowhere else.

The router, the OpenAPI document, the authorization check, the pages' navigation and the treatment on a
follower are all read from these declarations; see `routes_in`.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar

from tornado.web import RequestHandler

from minicluster.wire import MOST, Message

BYTES, TEXT, STREAM = "application/octet-stream", "text/plain", "text/event-stream"
F = TypeVar("F", bound=Callable[..., Any])


class Scope(StrEnum):
    """The hub's custom scopes that routes require."""

    READ = "custom:minicluster:read"
    SUBMIT = "custom:minicluster:submit"
    ADMIN = "custom:minicluster:admin"
    POLICY = "custom:minicluster:policy"
    PLACE = "custom:minicluster:place"
    MODELS = "custom:minicluster:models"


class Who(StrEnum):
    """Who may use a route: a hub's user, its spawner, a task's agent, a node's data set agent, or anyone.

    machine: anyone, but only on the agents' port.
    """

    USER = "user"
    SPAWNER = "spawner"
    TASK = "task"
    DATA_AGENT = "keeper"
    MACHINE = "machine"
    ANYONE = "anyone"


AGENTS = (Who.TASK, Who.DATA_AGENT, Who.MACHINE)
"""Clients of the agents' port, if there is one."""


class OnFollower(Enum):
    """What a follower does with a request.

    PROXY: forwards it to the leader. REFER: refuses it and names the leader's address, since agents know
    all job services, and a direct connection is shorter. ANSWER: answers it.
    """

    PROXY = auto()
    REFER = auto()
    ANSWER = auto()


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter in the URL. kind: its JSON schema type. low, high: bounds of integers.

    default: None if the parameter has no default, or if it depends on the request.
    """

    name: str
    kind: str
    text: str
    default: int | None = None
    low: int = 0
    high: int = MOST


OWNER = Query("owner", "string", "`all` (admins): everyone's")


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path.

    path: relative to the service's prefix, with `{name}` for variable parts (see `path_pattern`).
    body: the model of the request's JSON, or a media type of raw bytes, or None.
    answer: the model of the answer's JSON, or its media type, or None for an empty answer.
    formerly: the path in an earlier release; it works for one more release.
    parts: regular expressions of variable parts that need their own.
    """

    path: str
    summary: str
    scope: Scope | None = None
    body: type[Message] | str | None = None
    answer: type[Message] | str | None = None
    status: int = 200
    query: tuple[Query, ...] = ()
    formerly: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    method: str = ""
    handler: type[RequestHandler] = RequestHandler
    who: Who = Who.USER
    on_follower: OnFollower = OnFollower.PROXY

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.formerly) if self.formerly else (self.path,)


def route(
    path: str,
    summary: str,
    *,
    scope: Scope | None = None,
    body: type[Message] | str | None = None,
    answer: type[Message] | str | None = None,
    status: int = 200,
    query: tuple[Query, ...] = (),
    formerly: str = "",
    parts: Mapping[str, str] | None = None,
) -> Callable[[F], F]:
    """Declare that a handler's method answers on a path; see Route."""
    declared = Route(path, summary, scope, body, answer, status, query, formerly, parts or {})

    def declare(method: F) -> F:
        method.route = declared  # type: ignore[attr-defined]
        return method

    return declare


def routes_of(handler: type[RequestHandler]) -> list[Route]:
    """Return the routes of a handler's own methods; `who` and `on_follower` come from its class."""
    who = getattr(handler, "who", Who.ANYONE)
    on_follower = getattr(handler, "on_follower", OnFollower.PROXY)
    return [
        replace(declared, method=name.upper(), handler=handler, who=who, on_follower=on_follower)
        for name, member in vars(handler).items()
        if isinstance(declared := getattr(member, "route", None), Route)
    ]


@lru_cache
def handlers_in(package: str) -> tuple[type[RequestHandler], ...]:
    """Return the handlers of all modules of a package, in their order there."""
    found: list[type[RequestHandler]] = []
    for info in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
        members = vars(import_module(info.name)).values()
        kinds = (one for one in members if isinstance(one, type) and issubclass(one, RequestHandler))
        found += (kind for kind in kinds if kind.__module__ == info.name)
    return tuple(found)


@lru_cache
def routes_in(package: str) -> tuple[Route, ...]:
    return tuple(route for handler in handlers_in(package) for route in routes_of(handler))


_NAME = r"[^/]{1,1024}"
_DIGITS = r"[0-9]{1,15}"
"""The databases cannot store longer ids."""
_PARTS = {"sha256": r"[0-9a-f]{64}", "digest": r"sha256:[0-9a-f]{64}"}


def path_parts(route: Route) -> dict[str, str]:
    """Return the variable parts of a route's path, with their regular expressions."""
    special = {**_PARTS, **route.parts}
    return {
        name: special.get(name) or (_DIGITS if name.endswith("_id") else _NAME)
        for name in re.findall(r"{(\w+)}", route.path)
    }


def path_pattern(route: Route, path: str) -> str:
    """Return the regular expression of one of a route's paths."""
    parts = path_parts(route)
    return re.sub(r"{(\w+)}", lambda part: f"(?P<{part[1]}>{parts[part[1]]})", path.replace(".", r"\."))
