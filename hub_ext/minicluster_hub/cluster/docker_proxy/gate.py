"""The gate: reads a document before Docker does, and sends on what it read, not what came."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import httpx
from pydantic import ValidationError
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application, RequestHandler

from minicluster_hub.cluster.docker_proxy import rules, shapes

_LOG = logging.getLogger("minicluster.docker-proxy")
_TIMEOUT_S = 120.0
_MOST_BYTES = 4 << 20
_CALLS = rf"/({rules.HUB}|{rules.SERVICE})((?:/v1\.[0-9]+)?/({'|'.join(shapes.SHAPES)})/create)"


class Create(RequestHandler):
    """A call that makes something. HAProxy says in the path whose it is."""

    def initialize(self, engine: httpx.AsyncClient, told: rules.Told) -> None:
        self._engine, self._told = engine, told

    async def post(self, consumer: str, path: str, kind: str) -> None:
        """Pass it on, or say what is not allowed."""
        try:
            document = shapes.of(kind, self.request.body)
        except ValidationError as error:
            self._refuse(consumer, path, shapes.complaints(error))
            return
        found = rules.problems(consumer, document, self._told)
        if found:
            self._refuse(consumer, path, f"{document.Name}: {'; '.join(found)}")
            return
        await self._proxy(path, shapes.again(document))

    async def _proxy(self, path: str, body: bytes) -> None:
        try:
            answer = await self._engine.post(path, content=body, headers={"Content-Type": "application/json"})
        except httpx.HTTPError as error:
            self._say(503, f"the Docker Engine does not answer: {error or type(error).__name__}")
            return
        self.set_status(answer.status_code)
        self.set_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
        self.finish(answer.content)

    def _refuse(self, consumer: str, path: str, why: str) -> None:
        _LOG.warning("refused: %s, POST %s: %s", consumer, path, why)
        self._say(403, f"Minicluster's Docker proxy refuses this call of the {consumer}. {why}")

    def _say(self, status: int, message: str) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"message": message}))


def serve(listen: Path, engine_socket: str, told: rules.Told) -> HTTPServer:
    """Listen for HAProxy on a Unix socket."""
    transport = httpx.AsyncHTTPTransport(uds=engine_socket)
    engine = httpx.AsyncClient(transport=transport, base_url="http://docker", timeout=_TIMEOUT_S)
    application = Application([(_CALLS, Create, {"engine": engine, "told": told})], log_function=_quiet)
    server = HTTPServer(application, max_body_size=_MOST_BYTES)
    server.add_socket(bind_unix_socket(str(listen), mode=0o600))
    return server


def _quiet(handler: RequestHandler) -> None:
    """What is refused is told by the handler, the rest by nobody."""
