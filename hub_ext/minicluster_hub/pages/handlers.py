"""The pages, in the hub's own look: its styles, its Bootstrap, its navigation."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tornado.web import StaticFileHandler

from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError, api_error
from minicluster_hub.web.route import Scope

if TYPE_CHECKING:
    from jinja2 import Environment

STATIC = Path(__file__).with_name("static")
_TEMPLATES = Path(__file__).with_name("templates")


class Page(UserHandler):
    """Base: sends who is not logged in to the hub, and shows errors as a page."""

    template = ""
    title = ""

    def refuse_unknown(self) -> None:
        # The hub sends the browser back to this very path; nothing of it comes from a parameter.
        if not self.led_home():
            self.redirect(self.get_login_url())

    def get(self, **path: str) -> None:
        self.show(self.template, **path)

    def show(self, template: str, **values: Any) -> None:
        """Render a template of ours. What stands in it never changes what the browser may run."""
        namespace = {**self._hub_names(), "title": self.title, **values}
        html = _environment().get_template(template).render(namespace)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", self._policy())
        # Whoever opened this page in a window, be it of the same origin, cannot reach into it.
        self.set_header("Cross-Origin-Opener-Policy", "noopener-allow-popups")
        self.finish(html)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = api_error(kwargs.get("exc_info", (None, None, None))[1], status_code)
        self.set_status(error.status)
        # No script runs there that would ask for something; and who was refused gets no token.
        self.show("minicluster_problem.html", detail=error.detail, xsrf_token="")

    def _hub_names(self) -> dict[str, Any]:
        """Return what `minicluster_base.html` asks for."""
        model = self.current_user
        return {
            "hub_url": self.hub_auth.hub_host + self.hub_auth.hub_prefix,
            "user": model and {"name": model["name"]},
            "xsrf_token": self.xsrf_token.decode("ascii"),
            "service_url": self.context.prefix,
            "sees_all": model is not None and self._is_admin(),
        }

    def _is_admin(self) -> bool:
        return bool(self.hub_auth.check_scopes({Scope.ADMIN.value}, self.current_user))

    def _policy(self) -> str:
        """Return the content security policy: files of service and hub, nothing inline, in no frame."""
        hub = self.hub_auth.hub_host and f" {self.hub_auth.hub_host}{self.hub_auth.hub_prefix}"
        return (
            f"default-src 'none'; script-src 'self'{hub}; style-src 'self'{hub}; "
            f"img-src 'self'{hub} data:; font-src 'self'{hub}; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )


class JobsPage(Page):
    template = "minicluster_jobs.html"
    title = "Jobs"


class JobPage(Page):
    template = "minicluster_job.html"

    def get(self, **path: str) -> None:
        record = self.job_record(path["job_id"])
        self.show(self.template, job_id=record.id, title=f"Job {record.id}")


class NoPage(Page):
    """Any other path that a person may have typed."""

    def get(self, **path: str) -> None:
        raise ApiError(404, "unknown_path", f"There is no page {self.request.path}.")


class NodesPage(Page):
    template = "minicluster_nodes.html"
    title = "Nodes"


class ImagesPage(Page):
    template = "minicluster_images.html"
    title = "Images"


class StoragePage(Page):
    template = "minicluster_storage.html"
    title = "Storage"


class QueuePage(Page):
    template = "minicluster_queue.html"
    title = "Queue"


class StaticFiles(StaticFileHandler):
    """Our scripts. A new release has new file contents, so a browser asks each time (by ETag)."""

    def set_extra_headers(self, path: str) -> None:
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-cache")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Return the templates. jinja2 is loaded at the first page."""
    from jinja2 import Environment, FileSystemLoader

    return Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True)
