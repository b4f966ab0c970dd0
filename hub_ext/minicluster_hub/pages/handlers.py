"""The pages, in the hub's look: its styles, its Bootstrap, its navigation.

To add a page, add a class here and its template. The navigation has all pages without variables in the path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jupyterhub.services.auth import HubOAuthCallbackHandler
from tornado.web import RequestHandler, StaticFileHandler

from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError, api_error
from minicluster_hub.web.route import Route, Scope, route, routes_in

if TYPE_CHECKING:
    from jinja2 import Environment

_STATIC = Path(__file__).with_name("static")
_TEMPLATES = Path(__file__).with_name("templates")
_PACKAGES = Path(__file__).with_name("npm") / "node_modules"
_HTML = "text/html"
F = TypeVar("F", bound=Callable[..., Any])


def page(path: str, title: str) -> Callable[[F], F]:
    """Declare that a handler's `get` shows a page."""
    return route(path, title, scope=Scope.READ, answer=_HTML)


class PageHandler(UserHandler):
    """Base of the pages: redirects to the hub's login, and shows errors as a page."""

    def refuse_unknown(self) -> None:
        # The hub redirects back to this path; no part of it comes from a parameter.
        if not self.redirected():
            self.redirect(self.get_login_url())

    def show(self, template: str, **values: Any) -> None:
        """Render one of our templates. Its values cannot add scripts that the browser would run."""
        title = self.route.summary if self.route else ""
        namespace = {**self._hub_names(), "title": title, **values}
        html = _environment().get_template(template).render(namespace)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", self._policy())
        # A page that opens this one in a window cannot access it, even at the same origin.
        self.set_header("Cross-Origin-Opener-Policy", "noopener-allow-popups")
        self.finish(html)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = api_error(kwargs.get("exc_info", (None, None, None))[1], status_code)
        self.set_status(error.status)
        # No script runs there that needs the token, and the user was refused.
        self.show("minicluster_problem.html", detail=error.detail, xsrf_token="")

    def _hub_names(self) -> dict[str, Any]:
        """Return the values of `minicluster_base.html`."""
        model = self.current_user
        return {
            "hub_url": self.hub_auth.hub_host + self.hub_auth.hub_prefix,
            "user": model and {"name": model["name"]},
            "xsrf_token": self.xsrf_token.decode("ascii"),
            "service_url": self.context.prefix,
            "sees_all": model is not None and self._is_admin(),
            "pages": [(one.path, one.summary) for one in routes_in(__package__) if _is_in_navigation(one)],
        }

    def _is_admin(self) -> bool:
        return bool(self.hub_auth.check_scopes({Scope.ADMIN.value}, self.current_user))

    def _policy(self) -> str:
        """Return the content security policy: files of service and hub, nothing inline, no frames."""
        hub = self.hub_auth.hub_host and f" {self.hub_auth.hub_host}{self.hub_auth.hub_prefix}"
        return (
            f"default-src 'none'; script-src 'self'{hub}; style-src 'self'{hub}; "
            f"img-src 'self'{hub} data:; font-src 'self'{hub}; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )


def _is_in_navigation(one: Route) -> bool:
    return one.answer == _HTML and "{" not in one.path


class HomePage(PageHandler):
    @page("home", "Home")
    def get(self) -> None:
        self.show("minicluster_home.html")


class JobsPage(PageHandler):
    @page("jobs", "Jobs")
    def get(self) -> None:
        self.show("minicluster_jobs.html")


class RunsPage(PageHandler):
    @page("runs", "Runs")
    def get(self) -> None:
        self.show("minicluster_runs.html")


class RunPage(PageHandler):
    """Everything about one run: a job, and what is remembered of it."""

    @page("runs/{job_id}", "One run")
    def get(self, job_id: str) -> None:
        record = self.job_record(job_id)
        mine = record.owner == self.user.name
        self.show("minicluster_run.html", job_id=record.id, title=f"Run {record.id}", mine=mine)


class JobPage(PageHandler):
    """The address of earlier releases, which notebooks and messages have."""

    @page("jobs/{job_id}", "One job")
    def get(self, job_id: str) -> None:
        self.redirect(f"{self.context.prefix}runs/{self.job_record(job_id).id}")


class ClusterPage(PageHandler):
    @page("cluster", "Cluster")
    def get(self) -> None:
        self.show("minicluster_cluster.html")


class ImagesPage(PageHandler):
    @page("images", "Images")
    def get(self) -> None:
        self.show("minicluster_images.html")


class QueuePage(PageHandler):
    @page("queue", "Queue")
    def get(self) -> None:
        self.show("minicluster_queue.html")


class StoragePage(PageHandler):
    @page("storage", "Storage")
    def get(self) -> None:
        self.show("minicluster_storage.html")


class SweepsPage(PageHandler):
    @page("sweeps", "Sweeps")
    def get(self) -> None:
        self.show("minicluster_sweeps.html")


class SweepPage(PageHandler):
    @page("sweeps/{sweep_id}", "One sweep")
    def get(self, sweep_id: str) -> None:
        sweep = self.context.store.sweeps.sweep(int(sweep_id))
        if sweep is None or (sweep.owner != self.user.name and not self.user.has(Scope.ADMIN)):
            raise ApiError(404, "unknown_sweep", f"There is no sweep {sweep_id} of yours.")
        self.show("minicluster_sweep.html", sweep_id=sweep.id, title=f"Sweep {sweep.id}")


class ModelsPage(PageHandler):
    @page("models", "Models")
    def get(self) -> None:
        self.show("minicluster_models.html")


class ModelPage(PageHandler):
    @page("models/{model_id}", "One model")
    def get(self, model_id: str) -> None:
        model = self.context.store.models.model(int(model_id))
        if model is None or (model.owner != self.user.name and not self.user.has(Scope.ADMIN)):
            raise ApiError(404, "unknown_model", f"There is no model {model_id} of yours.")
        self.show("minicluster_model.html", model_id=model.id, title=f"Model {model.name}")


class LoginCallback(HubOAuthCallbackHandler):
    """Where the hub redirects a browser after the login."""

    def initialize(self, context: Context, routes: Mapping[str, Route]) -> None:
        self.hub_auth = context.hub_auth

    async def prepare(self) -> None:
        # The base class reads `current_user`, which would block if it were not set.
        self.current_user = await self.hub_auth.get_user(self, sync=False)

    @route("oauth_callback", "The end of a login")
    async def get(self) -> None:
        await super().get()

    def write_error(self, status_code: int, **_kwargs: Any) -> None:
        self.set_header("Content-Security-Policy", "default-src 'none'")
        self.finish(f'The login failed. <a href="{self.hub_auth.base_url}">Try again</a>.')


class RootRedirect(RequestHandler):
    """Redirects the service's address to the home page."""

    def initialize(self, context: Context, routes: Mapping[str, Route]) -> None:
        self.prefix = context.prefix

    @route("", "The home page")
    def get(self) -> None:
        self.redirect(f"{self.prefix}home")


class JobsRedirect(RequestHandler):
    """Redirects a path without a job's id to the list of jobs."""

    def initialize(self, context: Context, routes: Mapping[str, Route]) -> None:
        self.prefix = context.prefix

    @route("jobs/", "The list of jobs")
    def get(self) -> None:
        self.redirect(f"{self.prefix}jobs")


class NodesRedirect(RequestHandler):
    """Redirects the path that the page of the cluster had in an earlier release."""

    def initialize(self, context: Context, routes: Mapping[str, Route]) -> None:
        self.prefix = context.prefix

    @route("nodes", "The cluster's page")
    def get(self) -> None:
        self.redirect(f"{self.prefix}cluster")


class StaticFiles(StaticFileHandler):
    """Our scripts and styles. Browsers check them at each load by ETag, since a release changes them."""

    def initialize(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, context: Context, routes: Mapping[str, Route]
    ) -> None:
        super().initialize(str(_STATIC))

    @route("static/{path}", "A script or a style", parts={"path": "(?!npm/).*"})
    async def get(self, path: str, include_body: bool = True) -> None:
        await super().get(path, include_body)

    def set_extra_headers(self, path: str) -> None:
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-cache")


class PackageFiles(StaticFiles):
    """Files of the pages' npm packages (`npm/package.json`)."""

    def initialize(self, context: Context, routes: Mapping[str, Route]) -> None:
        StaticFileHandler.initialize(self, str(_PACKAGES))

    @route("static/npm/{path}", "A file of an npm package", parts={"path": ".*"})
    async def get(self, path: str, include_body: bool = True) -> None:
        await StaticFileHandler.get(self, path, include_body)

    @classmethod
    def get_content(  # pyright: ignore[reportIncompatibleMethodOverride]
        cls, abspath: str, start: int | None = None, end: int | None = None
    ) -> bytes:
        return _with_paths(Path(abspath).read_bytes())[start:end]

    def get_content_size(self) -> int:
        return len(self.get_content(str(self.absolute_path)))


def _with_paths(module: bytes) -> bytes:
    """Replace the name of hyparquet in imports by its path, since browsers know no names of packages."""
    module = re.sub(rb"(\bfrom )'hyparquet'", rb"\1'../../hyparquet/src/index.js'", module)
    return re.sub(rb"(\bfrom )'hyparquet/", rb"\1'../../hyparquet/", module)


class NoPage(PageHandler):
    """Any other path. It comes last, since it matches everything."""

    @route("{other}", "No page", scope=Scope.READ, answer=_HTML, parts={"other": "(?!api/).*"})
    def get(self, other: str) -> None:
        raise ApiError(404, "unknown_path", f"There is no page {self.request.path}.")


@cache
def _environment() -> Environment:
    """Return the templates. The first page imports jinja2."""
    from jinja2 import Environment, FileSystemLoader

    return Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True)
