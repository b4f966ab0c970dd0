"""The handlers' routes: none is missing, and clients and pages use only existing ones."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from minicluster_hub.http_server import API, PAGES
from minicluster_hub.web.openapi import document
from minicluster_hub.web.route import OnFollower, Who, handlers_in, path_pattern, routes_in, routes_of

TREE = Path(__file__).resolve().parents[3]
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH")
ROUTES = (*routes_in(API), *routes_in(PAGES))
SCRIPT_CALL = re.compile(
    r'(?:ask|act|address|listen)\(\s*[`"](api/[^`"?]*)(?:\?[^`"]*)?[`"](?:,\s*{\s*method: "(\w+)")?'
)


@pytest.mark.parametrize(
    "handler", (*handlers_in(API), *handlers_in(PAGES)), ids=lambda handler: handler.__name__
)
def test_each_method_of_a_handler_declares_its_route(handler):
    answers = {name.upper() for name in vars(handler)} & set(METHODS)
    assert {route.method for route in routes_of(handler)} == answers
    assert answers or handler.__subclasses__(), "nobody can come here"


def test_one_handler_answers_on_a_path():
    handlers = {}
    for route in ROUTES:
        for path in route.paths:
            handlers.setdefault(path_pattern(route, path), set()).add(route.handler)
    assert [pattern for pattern, kinds in handlers.items() if len(kinds) > 1] == []


def test_agents_are_referred_to_the_leader_and_users_passed_on():
    for route in ROUTES:
        if route.who in (Who.TASK, Who.DATA_AGENT):
            assert route.on_follower is OnFollower.REFER, route.path
    assert [route.path for route in ROUTES if route.on_follower is OnFollower.ANSWER] == ["health"]


def test_a_former_path_is_described_as_deprecated():
    paths = document(routes_in(API), "/services/minicluster/")["paths"]
    assert (
        paths["/api/claims"]["get"]["deprecated"] and paths["/api/jobs/{job_id}/story"]["get"]["deprecated"]
    )
    assert not paths["/api/reservations"]["get"]["deprecated"]


# --- requested paths ------------------------------------------------------------------------------


def asked_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the method ("" if it is not next to the path) and the path of each request in a file."""
    if path.suffix == ".js":
        for asked, method in SCRIPT_CALL.findall(path.read_text()):
            yield method or "GET", re.sub(r"\${[^}]*}", "{}", asked)
        return
    tree = ast.parse(path.read_text())
    methods = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for before, after in zip(node.args, node.args[1:], strict=False):
                if isinstance(before, ast.Constant) and before.value in METHODS:
                    methods[id(after)] = before.value
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        text = "" if id(node) in inside else text_of(node)
        if re.match(r"({})?api/", text) and " " not in text:
            yield methods.get(id(node), ""), text.removeprefix("{}").partition("?")[0]


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_route(method: str, asked: str) -> bool:
    return any(
        method in ("", route.method) and fits(path.split("/"), asked.split("/"))
        for route in ROUTES
        for path in route.paths
    )


def fits(declared: list[str], asked: list[str]) -> bool:
    """Whether a declared path may match a requested one; `{}` stands for unknown parts."""
    return len(declared) == len(asked) and all(
        own == other or own.startswith("{") or other == "{}"
        for own, other in zip(declared, asked, strict=True)
    )


ASKING = [
    (path.relative_to(TREE), method, asked)
    for folder, ending in (
        ("kernels/minicluster", "py"),
        ("spawner", "py"),
        ("hub_ext/minicluster_hub/pages", "js"),
    )
    for path in sorted((TREE / folder).rglob(f"*.{ending}"))
    for method, asked in asked_in(path)
]


def test_clients_and_pages_were_found():
    called = {f"{method} {asked}" for _, method, asked in ASKING}
    known = {
        "POST api/jobs",
        "GET api/jobs/{}",
        "GET api/servers",
        "POST api/tasks/report",
        " api/jobs/{}/log",
    }
    assert known | {"GET api/queue/me", "POST api/reservations", "DELETE api/reservations/{}"} <= called


@pytest.mark.parametrize(("path", "method", "asked"), ASKING, ids=lambda one: str(one))
def test_what_is_asked_for_is_a_declared_route(path, method, asked):
    assert is_route(method, asked), f"{path} asks for {method} {asked}, which no handler declares"
