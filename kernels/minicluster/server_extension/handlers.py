"""The extension's endpoints. Users who may run kernels here may watch jobs and stop them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import ensure_async, url_path_join
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, authenticated
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from minicluster.client.connection import ServiceError
from minicluster.display.follow import stop
from minicluster.errors import MiniclusterError
from minicluster.server_extension import tensorboard
from minicluster.server_extension.base import ClusterRequestHandler, Place
from minicluster.server_extension.clusters import Clusters
from minicluster.server_extension.runs import RunsHandler, WatchedRuns
from minicluster.server_extension.watched_jobs import JobKey, WatchedJobs
from minicluster.wire import Job

_NEWEST_JOBS = 100
_MOST_ASKED = 256
_MOST_UNSENT_BYTES = 1 << 20


def routes(base_url: str, clusters: Clusters) -> list[tuple[str, type[JupyterHandler], dict[str, Any]]]:
    """Return the handlers' routes."""
    at = lambda name: url_path_join(base_url, "minicluster", name)  # noqa: E731
    return [
        (
            at("stream"),
            StreamHandler,
            {"watch": WatchedJobs(clusters.service), "runs": WatchedRuns(clusters)},
        ),
        (at("stop"), StopButtonHandler, {"clusters": clusters}),
        (at("jobs"), NotebookJobsHandler, {"clusters": clusters}),
        (at("runs"), RunsHandler, {"clusters": clusters}),
        *tensorboard.routes(base_url, clusters),
    ]


class StreamHandler(WebSocketMixin, WebSocketHandler, JupyterHandler):  # pyright: ignore[reportIncompatibleMethodOverride]
    """One connection per page, for all its panels: the page sends its list of jobs and receives changes."""

    auth_resource = "kernels"

    def initialize(self, watch: WatchedJobs, runs: WatchedRuns) -> None:
        super().initialize()
        self._watch, self._runs = watch, runs
        self._unsent_bytes = 0
        self._sending: set[asyncio.Future[None]] = set()

    def set_default_headers(self) -> None:
        """Set no headers: a WebSocket does not use them."""

    def get_compression_options(self) -> dict[str, Any] | None:
        return self.settings.get("websocket_compression_options")

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        allowed = await ensure_async(
            self.authorizer.is_authorized(self, self.current_user, "execute", self.auth_resource)
        )
        if not allowed:
            raise HTTPError(403)
        await super().get(*args, **kwargs)

    def on_message(self, message: str | bytes) -> None:
        """Handle a message from the page; see lab/stream.js."""
        try:
            data = json.loads(message)
            if "keep" in data:
                self._watch.keep(self, _key(data["keep"]), data["keep"].get("waited"))
            else:
                shown = data["show"][:_MOST_ASKED]
                self._watch.show(self, {_key(one): bool(one.get("live")) for one in shown})
                self._runs.watch(self) if data.get("runs") else self._runs.leave(self)
        except (ValueError, KeyError, TypeError):
            self.close(1003, "what is to be shown?")

    def on_close(self) -> None:
        super().on_close()
        self._watch.leave(self)
        self._runs.leave(self)

    def tell(self, message: dict[str, Any]) -> bool:
        """Send to the page. Return False, and send nothing, if too many bytes are still unsent."""
        if self._unsent_bytes > _MOST_UNSENT_BYTES:
            return False
        sending = asyncio.ensure_future(self._write(json.dumps(message)))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        return True

    async def _write(self, text: str) -> None:
        self._unsent_bytes += len(text)
        # on_close handles a closed page.
        with contextlib.suppress(WebSocketClosedError, StreamClosedError):
            await self.write_message(text)
        self._unsent_bytes -= len(text)


class StopButtonHandler(ClusterRequestHandler):
    """Stops a job without involving its kernel."""

    @authenticated
    @authorized(action="execute")
    async def post(self) -> None:
        asked = self.get_json_body() or {}
        try:
            await asyncio.to_thread(self._stop, _key(asked))
        except (KeyError, TypeError, ValueError) as error:
            raise HTTPError(400, "which job? {service, job, made}") from error
        except MiniclusterError as error:
            self.refuse(error)
        else:
            self.finish("{}")

    def _stop(self, key: JobKey) -> None:
        service = self._clusters.service(key.service)
        job = service.job(key.job)
        if job.created_at != key.made:
            raise ServiceError(f"job {key.job} of this cluster is another one", code="unknown_job")
        stop(service, job.model_copy(update={"cell_number": key.number}))


class NotebookJobsHandler(ClusterRequestHandler):
    """Lists jobs whose panels may be missing from a notebook."""

    @authenticated
    @authorized(action="read")
    async def get(self) -> None:
        path, place = self.get_query_argument("path"), await self.place()
        file = place.root / path
        saved_at = file.stat().st_mtime if file.is_file() else 0.0
        found = []
        try:
            for address in self._clusters.addresses():
                jobs = await asyncio.to_thread(lambda a=address: self._clusters.service(a).jobs(_NEWEST_JOBS))
                found += [_message(job, address) for job in jobs_to_show(jobs, path, saved_at, place)]
        except MiniclusterError as error:
            self.refuse(error)
            return
        self.finish(json.dumps({"jobs": found}))


def _message(job: Job, address: str) -> dict[str, Any]:
    cell, is_open = job.origin.cell if job.origin else "", not job.state.terminal
    return {"service": address, "job": job.id, "made": job.created_at, "cell": cell, "open": is_open}


def _key(fields: dict[str, Any]) -> JobKey:
    number = int(fields.get("number", 0))
    return JobKey(str(fields["service"]), int(fields["job"]), float(fields["made"]), number)


def jobs_to_show(jobs: tuple[Job, ...], path: str, saved_at: float, place: Place) -> list[Job]:
    """Return jobs whose panels a notebook may lack: open jobs, and jobs that ended after it was saved.

    If a job's notebook no longer exists, this may be the same notebook, renamed: compare cell ids.
    A copied notebook has the same ids, too, but then the original still exists.
    """
    found = []
    for job in jobs:
        if job.origin is None or not job.origin.cell or (job.ended_at or saved_at) < saved_at:
            continue
        came_from = place.path_of(job.origin)
        if came_from == path or not place.has(came_from):
            found.append(job)
    return found
