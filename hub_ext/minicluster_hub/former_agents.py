"""Answers agents of the release before TLS by plain HTTP, until their tasks end.

When the service first listens with TLS, it stores the id of the newest task: all tasks up to it are such.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tornado.httpserver import HTTPServer

from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.jobs.records import TaskState
from minicluster_hub.listeners import ServiceBroken, bind


class FormerAgents:
    """file: has the id of their newest task. bind_url: the address for them while such a task lives."""

    def __init__(self, file: Path, bind_url: str, log: logging.Logger) -> None:
        self._file = file
        self._bind_url = bind_url
        self._log = log

    async def run(self, server: HTTPServer, status_cache: StatusCache) -> None:
        """Answer such agents; return when none is left, or at once if there is none."""
        await status_cache.observed.wait()
        if not self._bind_url or not self._live(status_cache):
            return
        try:
            server.add_sockets(bind(self._bind_url))
        except ServiceBroken as error:
            self._log.error("agents of the former release get no answer, so their tasks restart: %s", error)
            return
        self._log.info("tasks of the former release run: their agents are answered at %s", self._bind_url)
        async with status_cache.changes.listen() as subscription:
            while self._live(status_cache):
                await subscription.wait(None)
        server.stop()
        await server.close_all_connections()
        self._log.info("no task of the former release runs: plain HTTP is closed")

    def _live(self, status_cache: StatusCache) -> bool:
        newest = self._newest(status_cache)
        return any(
            task.id <= newest and task.state is not TaskState.ENDED for task in status_cache.stored.tasks
        )

    def _newest(self, status_cache: StatusCache) -> int:
        if not self._file.exists():
            fresh = self._file.with_suffix(".new")
            fresh.write_text(str(max((task.id for task in status_cache.stored.tasks), default=0)))
            fresh.replace(self._file)
        return int(self._file.read_text())
