"""The pages, in the hub's own look: its templates, its Bootstrap, its navigation."""

from __future__ import annotations

import base64
import hashlib
import json
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
        self.redirect(self.get_login_url())

    def get(self, **path: str) -> None:
        self.show(self.template, **path)

    def show(self, template: str, **values: Any) -> None:
        """Render a template of ours, which extends the hub's `page.html`."""
        namespace = {**self._hub_names(), "title": self.title, **values}
        html = _environment().get_template(template).render(namespace)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", self._policy(html))
        self.finish(html)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = api_error(kwargs.get("exc_info", (None, None, None))[1], status_code)
        self.set_status(error.status)
        self.show("minicluster_problem.html", detail=error.detail)

    def _hub_names(self) -> dict[str, Any]:
        """Return the variables that the hub's `page.html` asks for, and ours."""
        hub_url = self.hub_auth.hub_host + self.hub_auth.hub_prefix
        model = self.current_user
        return {
            "base_url": hub_url,
            "prefix": self.hub_auth.hub_host + self.hub_auth.hub_prefix.removesuffix("hub/"),
            "static_url": lambda path, **_: f"{hub_url}static/{path}",
            "login_url": f"{hub_url}login",
            "logout_url": f"{hub_url}logout",
            "no_spawner_check": True,
            "parsed_scopes": {},
            "user": model and {"name": model["name"], "json_escaped_name": _escaped(model["name"])},
            "xsrf_token": self.xsrf_token.decode("ascii"),
            "service_url": self.context.prefix,
            "sees_all": model is not None and self._is_admin(),
        }

    def _is_admin(self) -> bool:
        return bool(self.hub_auth.check_scopes({Scope.ADMIN.value}, self.current_user))

    def _policy(self, html: str) -> str:
        """Return the content security policy: scripts of this origin, and the hub's own inline one."""
        hashes = " ".join(f"'sha256-{_digest(script)}'" for script in _INLINE_SCRIPT.findall(html))
        host = urlsplit(self.hub_auth.hub_host)
        hub = f" {host.scheme}://{host.netloc}" if host.netloc else ""
        return (
            f"default-src 'none'; script-src 'self'{hub} {hashes}; style-src 'self'{hub}; "
            f"img-src 'self'{hub} data:; font-src 'self'{hub}; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
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


class QueuePage(Page):
    template = "minicluster_queue.html"
    title = "Queue"


class StaticFiles(StaticFileHandler):
    """Our scripts. A new release has new file contents, so a browser asks each time (by ETag)."""

    def set_extra_headers(self, path: str) -> None:
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-cache")


def _escaped(name: str) -> str:
    """Return a user's name as the hub's inline script wants it: inside a quoted JavaScript string."""
    text = json.dumps(name)[1:-1]
    return (
        text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("'", "\\u0027")
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Return the templates: ours first, then the hub's. jinja2 is loaded at the first page."""
    from jinja2 import Environment, FileSystemLoader
    from jupyterhub._data import DATA_FILES_PATH

    folders = [str(_PACKAGE / "templates"), str(Path(DATA_FILES_PATH) / "templates")]
    return Environment(loader=FileSystemLoader(folders), autoescape=True)
