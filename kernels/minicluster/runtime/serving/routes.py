"""The paths of a replica: plain JSON, the open inference protocol (V2), and the gate in front of them.

They are Starlette's plain routes: FastAPI's would look for parameters and dependencies in each request.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import litserve
from litserve.server import RegularRequestHandler
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from minicluster.runtime.serving.model_api import JSON_TYPE, Asked, ModelAPI, answer
from minicluster.runtime.serving.shared import SharedState
from minicluster.serving import protocol, tensors
from minicluster.serving.tensors import ValueRefused
from minicluster.wire.serving.replicas import TensorSpec

SECRET_HEADER = "Minicluster-Replica"  # noqa: S105 - the name of a header
READY_PATH = "/v2/health/ready"
DRAINING = "this replica takes no more requests: another one does"
_SECRET_HEADER = SECRET_HEADER.lower().encode()
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Gate:
    """Lets requests with the secret pass, counts those that are open, and takes none while it drains."""

    def __init__(self, app: Callable[..., Awaitable[None]], secret: str, state: SharedState) -> None:
        self._app = app
        self._secret = secret.encode()
        self._state = state

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == _SECRET_HEADER), b"")
        if not hmac.compare_digest(given, self._secret):
            await answer(403, "this address is for the front of the cluster alone")(scope, receive, send)
        elif self._state.draining:
            await answer(503, DRAINING)(scope, receive, send)
        else:
            self._state.begun()
            try:
                await self._app(scope, receive, send)
            finally:
                self._state.ended()


def add_routes(server: litserve.LitServer, api: ModelAPI, state: SharedState) -> None:
    """Give the server's application the replica's paths, in place of LitServe's own."""
    app, routes = server.app, ProtocolRoutes(server, api, state)
    app.router.routes.clear()
    # A redirect would lead to the replica's own address, which is not the asker's.
    app.router.redirect_slashes = False
    app.add_exception_handler(ValueRefused, _refused)
    app.add_exception_handler(HTTPException, _told)
    app.add_exception_handler(Exception, _failed)
    app.add_route("/predict", routes.predict, methods=["POST"])
    for path in ("/v2", "/v2/"):
        app.add_route(path, routes.about, methods=["GET"])
    app.add_route("/v2/health/live", routes.live, methods=["GET"])
    app.add_route(READY_PATH, routes.ready, methods=["GET"])
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        app.add_route(path, routes.model, methods=["GET"])
        app.add_route(f"{path}/ready", routes.model_ready, methods=["GET"])
        app.add_route(f"{path}/infer", routes.infer, methods=["POST"])


class ProtocolRoutes:
    """The paths of the one model that is here."""

    def __init__(self, server: litserve.LitServer, api: ModelAPI, state: SharedState) -> None:
        self._serve = api.serve
        self._state = state
        self._handler = RegularRequestHandler(api, server)

    async def predict(self, request: Request) -> Response:
        """Take plain JSON, whatever the content type says: curl -d says that it sends a form."""
        value = tensors.from_json(await request.body())
        return await self._ask(Asked(tensors.read_plain(value, self._serve.signature)))

    async def infer(self, request: Request) -> Response:
        self._check(request)
        json_bytes = request.headers.get(protocol.HEADER_LENGTH, "")
        value, wanted = protocol.read_request(await request.body(), json_bytes, self._serve.signature)
        return await self._ask(Asked(value, wanted))

    async def _ask(self, asked: Asked) -> Response:
        """Have the other process answer. Raises HTTPException: it took too long, for example."""
        self._state.asked(time.monotonic())
        try:
            return await self._handler.handle_request(asked, Asked)
        finally:
            self._state.answered(time.monotonic())

    async def about(self, _request: Request) -> Response:
        return _json({"name": "minicluster", "version": "2", "extensions": [protocol.BINARY_EXTENSION]})

    async def live(self, _request: Request) -> Response:
        return _json({"live": True})

    async def ready(self, _request: Request) -> Response:
        return _json({"live": True, "ready": True})

    async def model(self, request: Request) -> Response:
        self._check(request)
        serve = self._serve
        about = {
            "name": serve.name,
            "versions": [str(serve.version)],
            "platform": "pytorch" if serve.signature.torch else "python",
            "inputs": [_shown(spec) for spec in serve.signature.inputs],
            "outputs": [_shown(spec) for spec in serve.signature.outputs],
        }
        return _json(about)

    async def model_ready(self, request: Request) -> Response:
        self._check(request)
        return _json({"name": self._serve.name, "ready": True})

    def _check(self, request: Request) -> None:
        """Raise HTTPException (404) for a model or a version that is not here."""
        serve = self._serve
        name, version = request.path_params["name"], request.path_params.get("version", "")
        if name != serve.name or version not in ("", str(serve.version)):
            asked = f"{name[:80]} {version[:20]}".strip()
            raise HTTPException(404, f"there is no {asked} here: it is {serve.name} {serve.version}")


def _shown(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": list(spec.shape)}


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type=JSON_TYPE)


# All errors look alike.


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ValueRefused)  # noqa: S101 - it is the handler of these
    return answer(400, error.message)


async def _told(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as above
    return answer(error.status_code, str(error.detail))


async def _failed(_request: Request, _error: Exception) -> Response:
    """Hide any other error from the asker; the server writes it into the replica's log."""
    return answer(500, "the replica failed on this request; its owner finds the error in its log")
