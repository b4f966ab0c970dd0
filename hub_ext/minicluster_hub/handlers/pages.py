"""The pages, in the hub's own look: its templates, its Bootstrap, its navigation."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tornado.web import StaticFileHandler

from minicluster_hub.handlers.auth import UserHandler
from minicluster_hub.handlers.errors import ApiError, api_error
from minicluster_hub.handlers.route import Scope

if TYPE_CHECKING:
    from jinja2 import Environment

_PACKAGE = Path(__file__).parent.parent
_INLINE_SCRIPT = re.compile(r"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)


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
        """Render a template of ours, which extends the hub's `page.html`."""
        namespace = {**self._hub_names(), "title": self.title, **values}
        html = _environment().get_template(template).render(namespace)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", self._policy())
        self.finish(html)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = api_error(kwargs.get("exc_info", (None, None, None))[1], status_code)
        self.set_status(error.status)
        self.show("minicluster_problem.html", detail=error.detail)

    def _hub_names(self) -> dict[str, Any]:
        """Return the variables that the hub's `page.html` asks for, and ours."""
        model = self.current_user
        return {
            **_frame(self.hub_auth.hub_host, self.hub_auth.hub_prefix),
            "user": model and {"name": model["name"]},
            "xsrf": self.xsrf_token.decode("ascii"),
            "service_url": self.context.prefix,
            "sees_all": model is not None and self._is_admin(),
        }

    def _is_admin(self) -> bool:
        return bool(self.hub_auth.check_scopes({Scope.ADMIN.value}, self.current_user))

    def _policy(self) -> str:
        """Return the content security policy: scripts of this origin, and the hub's own inline one.

        That one is known by the hash of a page on which nobody's data stands.
        """
        host = urlsplit(self.hub_auth.hub_host)
        hub = f" {host.scheme}://{host.netloc}" if host.netloc else ""
        known = " ".join(_inline_hashes(self.hub_auth.hub_host, self.hub_auth.hub_prefix))
        return (
            f"default-src 'none'; script-src 'self'{hub} {known}; style-src 'self'{hub}; "
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


def _frame(hub_host: str, hub_prefix: str) -> dict[str, Any]:
    """Return what the hub's `page.html` asks for, whoever looks."""
    hub_url = hub_host + hub_prefix
    return {
        "base_url": hub_url,
        "prefix": hub_host + hub_prefix.removesuffix("hub/"),
        "static_url": lambda path, **_: f"{hub_url}static/{path}",
        "login_url": f"{hub_url}login",
        "logout_url": f"{hub_url}logout",
        "no_spawner_check": True,
        "parsed_scopes": {},
    }


@lru_cache(maxsize=4)
def _inline_hashes(hub_host: str, hub_prefix: str) -> tuple[str, ...]:
    """Return the hashes of the inline scripts of the hub's `page.html`, with and without a user.

    They come from pages that nobody's data is in: what is slipped into a page of ours has another hash.
    """
    frame, page = _frame(hub_host, hub_prefix), _environment().get_template("page.html")
    pages = (page.render(frame, user=user) for user in (None, {"name": ""}))
    scripts = dict.fromkeys(script for html in pages for script in _INLINE_SCRIPT.findall(html))
    return tuple(f"'sha256-{_digest(script)}'" for script in scripts)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Return the templates: ours first, then the hub's. jinja2 is loaded at the first page."""
    from jinja2 import Environment, FileSystemLoader
    from jupyterhub._data import DATA_FILES_PATH

    folders = [str(_PACKAGE / "templates"), str(Path(DATA_FILES_PATH) / "templates")]
    return Environment(loader=FileSystemLoader(folders), autoescape=True)
