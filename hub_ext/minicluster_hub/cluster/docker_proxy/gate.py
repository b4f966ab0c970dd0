"""The gate: parses a document before Docker does, and forwards what it parsed, not the original bytes."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import httpx
from pydantic import ValidationError
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_unix_socket
from tornado.web import Application, RequestHandler

from minicluster_hub.cluster.docker_proxy import documents, rules

_LOG = logging.getLogger("minicluster.docker-proxy")
_TIMEOUT_S = 120.0
_MAX_BYTES = 4 << 20
_ROUTE = rf"/({'|'.join(rules.ROLES)})((?:/v1\.[0-9]+)?/({'|'.join(documents.DOCUMENTS)})/create)"


class CreateHandler(RequestHandler):
    """A call that creates an object. HAProxy puts the consumer first in the path."""

    def initialize(self, engine: httpx.AsyncClient, settings: rules.RuleSettings) -> None:
        self._engine, self._settings = engine, settings

    async def post(self, consumer: str, path: str, kind: str) -> None:
        """Forward the call, or answer what is not allowed."""
        try:
            document = documents.parse(kind, self.request.body)
        except ValidationError as error:
            self._refuse(consumer, path, documents.complaints(error))
            return
        if found := rules.problems(consumer, document, self._settings):
            self._refuse(consumer, path, f"{document.Name}: {'; '.join(found)}")
            return
        headers = {"Content-Type": "application/json"}
        try:
            answer = await self._engine.post(path, content=documents.serialize(document), headers=headers)
        except httpx.HTTPError as error:
            self._finish(503, f"the Docker Engine does not answer: {error or type(error).__name__}")
            return
        self.set_status(answer.status_code)
        self.set_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
        self.finish(answer.content)

    def _refuse(self, consumer: str, path: str, why: str) -> None:
        _LOG.warning("refused: %s, POST %s: %s", consumer, path, why)
        self._finish(403, f"Minicluster's Docker proxy refuses this call of the {consumer}. {why}")

    def _finish(self, status: int, message: str) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"message": message}))


def serve(listen: Path, engine_socket: str, settings: rules.RuleSettings) -> HTTPServer:
    """Listen for HAProxy on a Unix socket."""
    transport = httpx.AsyncHTTPTransport(uds=engine_socket)
    engine = httpx.AsyncClient(transport=transport, base_url="http://docker", timeout=_TIMEOUT_S)
    application = Application(
        [(_ROUTE, CreateHandler, {"engine": engine, "settings": settings})],
        log_function=lambda handler: None,  # The handler logs refusals; nothing else is logged.
    )
    server = HTTPServer(application, max_body_size=_MAX_BYTES)
    server.add_socket(bind_unix_socket(str(listen), mode=0o600))
    return server
