"""A Docker proxy as in its container, in front of a fake engine that records all calls."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_unix_socket
from tornado.web import Application, RequestHandler

from minicluster_hub.cluster.docker_proxy.settings import FOLDER_ENV, RULES_ENV, SOCKET_ENV
from minicluster_hub.engines.swarm.docker import Docker

from ...patience import until

CONSUMERS = ("hub", "service")


@dataclass
class Engine:
    """seen: method, path and parsed body of each call; texts: the raw bodies."""

    socket: Path
    seen: list[tuple[str, str, Any]] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    happened: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        application = Application(
            [(r".*/events", Events, {"engine": self}), (r".*", Anything, {"engine": self})],
            log_function=lambda _: None,
        )
        self._server = HTTPServer(application)
        self._server.add_socket(bind_unix_socket(str(self.socket)))

    async def stop(self) -> None:
        self._server.stop()
        await self._server.close_all_connections()
        self.socket.unlink(missing_ok=True)


class Anything(RequestHandler):
    """Records the call, and answers what docker-py accepts as success."""

    def initialize(self, engine: Engine) -> None:
        self.engine = engine

    def prepare(self) -> None:
        body = json.loads(self.request.body) if self.request.body else None
        self.engine.seen.append((self.request.method or "", self.request.path, body))
        self.engine.texts.append(self.request.body)

    async def answer(self) -> None:
        self.write({"ApiVersion": "1.45", "ID": "made", "Id": "made"})
        if self.request.path.endswith("/logs"):
            self.set_header("Content-Type", "application/octet-stream")

    get = post = put = delete = patch = head = options = answer


class Events(Anything):
    """Sends one event at once, and another when the test triggers it."""

    async def get(self) -> None:
        self.write('{"Type": "node"}\n')
        await self.flush()
        await self.engine.happened.wait()
        try:
            self.write('{"Type": "node"}\n')
            await self.flush()
        except StreamClosedError:
            return


@dataclass
class Proxy:
    """The proxy's process and its two sockets."""

    folder: Path
    engine: Engine
    told: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for consumer in CONSUMERS:
            (self.folder / consumer).mkdir(exist_ok=True)
        environment = {
            SOCKET_ENV: str(self.engine.socket),
            FOLDER_ENV: str(self.folder),
            RULES_ENV: json.dumps(self.told),
        }
        command = [sys.executable, "-P", "-m", "minicluster_hub.cluster", "run", "docker-proxy"]
        self.process = subprocess.Popen(command, env={**os.environ, **environment})
        until(self._listens)

    def _listens(self) -> bool:
        try:
            for consumer in CONSUMERS:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(str(self.socket(consumer)))
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)

    def socket(self, consumer: str) -> Path:
        return self.folder / consumer / "docker.sock"

    def client(self, consumer: str) -> Docker:
        """Return the Docker client that the consumer itself uses."""
        return Docker.connect(f"unix://{self.socket(consumer)}", retry_s=5)

    async def call(self, consumer: str, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request, as an attacker in the consumer would."""
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket(consumer)))
        async with httpx.AsyncClient(transport=transport, timeout=20) as client:
            return await client.request(method, f"http://docker{path}", **more)

    async def raw(self, consumer: str, request: bytes) -> bytes:
        """Send bytes; return all received bytes until the connection ends."""
        reader, writer = await asyncio.open_unix_connection(str(self.socket(consumer)))
        writer.write(request)
        writer.write_eof()
        try:
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()
