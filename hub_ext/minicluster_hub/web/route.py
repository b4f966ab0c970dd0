"""A route as data: what tornado serves and what the OpenAPI document says come from the same table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tornado.web import RequestHandler

from minicluster.wire import Message


class Scope(StrEnum):
    """The hub's custom scopes that the service asks for."""

    READ = "custom:minicluster:read"
    SUBMIT = "custom:minicluster:submit"
    ADMIN = "custom:minicluster:admin"
    PLACE = "custom:minicluster:place"


class Who(StrEnum):
    """Who may come in by a route: a hub's user, its spawner, a task's agent, a node's keeper, or anyone.

    machine: anyone on the agents' port.
    """

    USER = "user"
    SPAWNER = "spawner"
    TASK = "task"
    DATA_AGENT = "keeper"
    MACHINE = "machine"
    ANYONE = "anyone"


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter in the URL. `kind` is its JSON schema type."""

    name: str
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path.

    path: relative to the service's prefix, with `{name}` for parts that vary (see `PARTS`).
    body: the model of the request's JSON, or a media type of raw bytes, or None.
    answer: the model of the answer's JSON, or its media type, or None for an empty answer.
    """

    method: str
    path: str
    handler: type[RequestHandler]
    summary: str
    who: Who = Who.USER
    scope: Scope | None = None
    body: type[Message] | str | None = None
    answer: type[Message] | str | None = None
    status: int = 200
    query: tuple[Query, ...] = ()


def path_parts(path: str) -> dict[str, str]:
    """Return the parts of a path that vary, with their patterns."""
    # Ids of more digits are beyond what the databases take.
    known = {
        "job_id": r"[0-9]{1,15}",
        "step": r"[0-9]{1,18}",
        "file": r".+",
        "sha256": r"[0-9a-f]{64}",
        "digest": r"sha256:[0-9a-f]{64}",
        "owner": r"[^/]{1,1024}",
        "data_name": r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
        "server": r"[^/]{1,1024}",
        "node": r"[^/]{1,255}",
        "reservation_id": r"[0-9]{1,15}",
    }
    return {name: known[name] for name in re.findall(r"{(\w+)}", path)}


def path_pattern(path: str) -> str:
    """Return the regular expression of a route's path."""
    parts = path_parts(path)
    return re.sub(r"{(\w+)}", lambda part: f"(?P<{part[1]}>{parts[part[1]]})", path.replace(".", r"\."))
