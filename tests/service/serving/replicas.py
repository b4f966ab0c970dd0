"""Small servers in place of replicas, each a real one on a port of its own."""

from __future__ import annotations

import asyncio
import json

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from minicluster.wire.serving.replicas import (
    ReplicaOptions,
    Signature,
    TensorSpec,
    TensorType,
    ValueKind,
)
from minicluster_hub.serving.routing import Endpoint, ModelRoute

TENSOR = TensorSpec(name="input", datatype=TensorType.FP32, shape=(-1, 2))
SIGNATURE = Signature(
    input_kind=ValueKind.TENSOR, output_kind=ValueKind.TENSOR, inputs=(TENSOR,), outputs=(TENSOR,)
)
SECRET = "a-secret-of-replicas"


class Answers(RequestHandler):
    async def get(self, path):
        await self._answer(path)

    async def post(self, path):
        await self._answer(path)

    async def _answer(self, path):
        replica = self.settings["replica"]
        replica.requests.append((self.request.method, path, dict(self.request.headers), self.request.body))
        if self.request.headers.get("Minicluster-Replica") != SECRET:
            self.set_status(403)
            return
        if replica.drains:
            self.set_status(503)
            self.finish({"error": "draining"})
            return
        await asyncio.sleep(replica.takes_s)
        self.set_header("Content-Type", replica.content_type)
        self.set_header("Set-Cookie", "evil=1; Path=/")
        self.set_header("Server", "the owner's")
        self.finish(json.dumps({"replica": replica.name}))


class Replica:
    """A replica that says its name, after `takes_s` seconds."""

    def __init__(self, name, job_id=1):
        self.name, self.takes_s, self.drains, self.requests = name, 0.0, False, []
        self.content_type = "application/json"
        sockets = bind_sockets(0, "127.0.0.1")
        self.endpoint = Endpoint(job_id, "127.0.0.1", sockets[0].getsockname()[1])
        self._server = HTTPServer(
            Application([("/(.*)", Answers)], replica=self, log_function=lambda handler: None)
        )
        self._server.add_sockets(sockets)

    async def die(self):
        """Close the port and all connections, as a killed process does."""
        self._server.stop()
        for connection in list(self._server._connections):
            connection.stream.close()
        await self._server.close_all_connections()


def route(*replicas, model_id=1, name="digits", version=1, **more):
    options = more.pop("options", ReplicaOptions())
    given = {"shared": False, "is_open": False, **more}
    return ModelRoute(
        model_id=model_id,
        owner="ada",
        name=name,
        version=version,
        secret=SECRET,
        options=options,
        signature=SIGNATURE,
        endpoints=tuple(one.endpoint for one in replicas),
        **given,
    )
