"""What tornado serves: the API, the pages, the login, static files, and 404 for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tornado.routing import URLSpec
from tornado.web import RedirectHandler

from minicluster_hub.pages import handlers
from minicluster_hub.api.table import API_ROUTES
from minicluster_hub.web.auth import LoginCallback
from minicluster_hub.web.base import NotFoundHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.route import Route, Scope, Who, path_pattern

_PAGE: dict[str, Any] = {"scope": Scope.READ, "answer": "text/html"}
PAGE_ROUTES: tuple[Route, ...] = (
    Route("GET", "", handlers.JobsPage, "Jobs", **_PAGE),
    Route("GET", "jobs/{job_id}", handlers.JobPage, "One job", **_PAGE),
    Route("GET", "nodes", handlers.NodesPage, "Nodes", **_PAGE),
    Route("GET", "images", handlers.ImagesPage, "Images", **_PAGE),
    Route("GET", "storage", handlers.StoragePage, "Storage", **_PAGE),
    Route("GET", "queue", handlers.QueuePage, "Queue", **_PAGE),
)
_AGENTS = (Who.TASK, Who.KEEPER, Who.MACHINE)
_NO_PAGE = {"GET": Route("GET", "other", handlers.NoPage, "No page", **_PAGE)}


def url_specs(context: Context, *, agents: bool = True) -> list[URLSpec]:
    """Return what tornado serves: the tables, the login, static files, and 404 for the rest.

    agents: also what agents of tasks and of nodes ask.
    """
    routes = [route for route in API_ROUTES if agents or route.who not in _AGENTS]
    static = Path(__file__).parent.parent / "static"
    prefix = context.prefix
    return [
        *_specs((*routes, *PAGE_ROUTES), context),
        URLSpec(f"{prefix}oauth_callback", LoginCallback, {"context": context}),
        URLSpec(f"{prefix}static/(.*)", handlers.StaticFiles, {"path": str(static)}),
        URLSpec(prefix.rstrip("/"), RedirectHandler, {"url": prefix, "permanent": False}),
        URLSpec(f"{prefix}jobs/?", RedirectHandler, {"url": prefix, "permanent": False}),
        URLSpec(f"{prefix}(?!api/).*", handlers.NoPage, {"context": context, "routes": _NO_PAGE}),
        URLSpec(r".*", NotFoundHandler, {"context": context, "routes": {}}),
    ]


def agent_specs(context: Context) -> list[URLSpec]:
    """Return what agents ask, and 404 for the rest."""
    routes = [route for route in API_ROUTES if route.who in _AGENTS or route.path == "health"]
    return [
        *_specs(routes, context),
        URLSpec(r".*", NotFoundHandler, {"context": context, "routes": {}}),
    ]


def _specs(routes: Iterable[Route], context: Context) -> list[URLSpec]:
    """Return one rule for each path; its handler gets the routes by their methods."""
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    return [_spec(path, methods, context) for path, methods in by_path.items()]


def _spec(path: str, methods: dict[str, Route], context: Context) -> URLSpec:
    arguments: dict[str, Any] = {"context": context, "routes": methods}
    handler = next(iter(methods.values())).handler
    return URLSpec(f"{context.prefix}{path_pattern(path)}", handler, arguments)
