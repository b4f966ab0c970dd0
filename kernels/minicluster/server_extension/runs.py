"""The user's runs in the sidebar: the list with small curves, and what changes while it is in view."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado.web import authenticated

from minicluster.client.client import JobServiceClient
from minicluster.client.sse import OPENED, changes
from minicluster.errors import MiniclusterError
from minicluster.server_extension.base import ClusterRequestHandler, Place
from minicluster.server_extension.clusters import Clusters
from minicluster.server_extension.watched_jobs import PanelPage
from minicluster.wire import MOST_RUNS, MOST_SERIES, Curve, Job, NotebookCell, Run, RunMetrics

_MOST = 2 * MOST_RUNS
_POINTS = 60
_AGAIN_S = 10.0
_SHOWN = frozenset({"id", "name", "state", "created_at", "started_at", "ended_at", "notebook", "cell"})


class RunsHandler(ClusterRequestHandler):
    """Lists the newest runs with a small curve of each, and where their notebooks are on this server."""

    @authenticated
    @authorized(action="read")
    async def get(self) -> None:
        place = await self.place()
        try:
            told = await asyncio.to_thread(self._told, place)
        except MiniclusterError as error:
            kinds = {"unknown_path": "older", "unknown_cluster": "none"}
            kind = kinds.get(getattr(error, "code", ""))
            if kind is None:
                self.refuse(error)
                return
            told = {"kind": kind}
        self.finish(json.dumps(told))

    def _told(self, place: Place) -> dict[str, Any]:
        addresses = self._clusters.addresses()
        if not addresses:
            return {"kind": "none"}
        service = self._clusters.service(addresses[0])
        runs = service.runs(limit=_MOST).runs
        curves = [
            curve.model_dump(include={"run", "name", "step", "value"})
            for curve in small_curves(service, runs)
        ]
        return {
            "kind": "runs",
            "service": addresses[0],
            "pages": service.browser_path(),
            "runs": [shown(run, place) for run in runs],
            "curves": curves,
        }


def small_curves(service: JobServiceClient, runs: tuple[Run, ...]) -> Iterator[Curve]:
    """Yield a curve of few points for each run that logged something."""
    wanted = {run.id: run.main_metric for run in runs if run.main_metric}
    ids = list(wanted)
    for start in range(0, len(ids), MOST_RUNS):
        some = ids[start : start + MOST_RUNS]
        names = list(dict.fromkeys(wanted[one] or "" for one in some))[:MOST_SERIES]
        found = service.curves(some, names, _POINTS).curves
        yield from (curve for curve in found if curve.name == wanted[curve.run])


def shown(run: Run, place: Place) -> dict[str, Any]:
    """Return what the page needs of a run. path: its notebook on this server now; there: it exists."""
    origin = NotebookCell(cell=run.cell, notebook=run.notebook, kernel=run.kernel)
    path = place.path_of(origin)
    return {**run.model_dump(mode="json", include=set(_SHOWN)), "path": path, "there": place.has(path)}


class WatchedRuns:
    """The pages that show the list of runs: one thread follows the job service's changes for all of them."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._pages: set[PanelPage] = set()
        self._lacking: set[PanelPage] = set()
        self._following = False

    def watch(self, page: PanelPage) -> None:
        """Send a page the changes from now on. It loads the list when it is told OPENED."""
        if page in self._pages:
            return
        self._pages.add(page)
        if self._following:
            self._send([page], OPENED, {})
            return
        self._following = True
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._follow, args=(loop,), name="minicluster-runs", daemon=True).start()

    def leave(self, page: PanelPage) -> None:
        self._pages.discard(page)
        self._lacking.discard(page)

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # The server ends: its loop is closed.
            while self._pages:
                with suppress(MiniclusterError):  # A request for the list says why.
                    self._follow_once(loop)
                if self._pages:
                    time.sleep(_AGAIN_S)
            loop.call_soon_threadsafe(self._ended)

    def _follow_once(self, loop: asyncio.AbstractEventLoop) -> None:
        addresses = self._clusters.addresses()
        service = self._clusters.service(addresses[0]) if addresses else None
        for event, data in changes(service, lambda: not self._pages) if service else ():
            if (told := change(event, data)) is not None:
                loop.call_soon_threadsafe(self._publish, event, told)

    def _ended(self) -> None:
        self._following = False
        for page in list(self._pages):  # It came while the thread ended.
            self._pages.discard(page)
            self.watch(page)

    def _publish(self, event: str, data: Any) -> None:
        self._send(list(self._pages), event, data)

    def _send(self, pages: list[PanelPage], event: str, data: Any) -> None:
        """Send a change. A page that lacks one loads the list again."""
        for page in pages:
            message = (
                {"event": OPENED, "data": {}} if page in self._lacking else {"event": event, "data": data}
            )
            if page.tell({"runs": message}):
                self._lacking.discard(page)
            else:
                self._lacking.add(page)


def change(event: str, data: str) -> dict[str, Any] | None:
    """Return what a page needs of an event; None if it is not about a run."""
    if event == OPENED:
        return {}
    if event == "job":
        return Job.model_validate_json(data).model_dump(mode="json", include=set(_SHOWN))
    if event == "metrics":
        return RunMetrics.model_validate_json(data).model_dump(mode="json")
    return None
