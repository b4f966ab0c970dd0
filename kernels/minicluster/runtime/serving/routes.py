"""The open inference protocol (V2) on LitServe's application, and the gate in front of it."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import litserve
from fastapi import HTTPException, Request, Response
from litserve.server import RegularRequestHandler

from minicluster.runtime.serving.model_api import HEADER_LENGTH, JSON_TYPE, Asked, ModelAPI, answer, refusal
from minicluster.runtime.serving.shared import SharedState
from minicluster.serving import tensors
from minicluster.serving.tensors import ValueRefused
from minicluster.wire.serving.replicas import ReplicaOf, TensorSpec

SECRET_HEADER = b"minicluster-replica"
DRAINING = "this replica takes no more requests: another one does"
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
        given = next((value for name, value in scope["headers"] if name == SECRET_HEADER), b"")
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


def add_routes(server: litserve.LitServer, api: ModelAPI) -> None:
    """Add the protocol's paths to the server's application."""
    routes = ProtocolRoutes(server, api)
    add = server.app.add_api_route
    add("/predict", routes.predict, methods=["POST"])
    add("/v2", routes.about, methods=["GET"])
    add("/v2/health/live", routes.live, methods=["GET"])
    add("/v2/health/ready", routes.ready, methods=["GET"])
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        add(path, routes.model, methods=["GET"])
        add(f"{path}/ready", routes.model_ready, methods=["GET"])
        add(f"{path}/infer", routes.infer, methods=["POST"])


class ProtocolRoutes:
    """The paths of the protocol, for the one model that is here."""

    def __init__(self, server: litserve.LitServer, api: ModelAPI) -> None:
        self._serve: ReplicaOf = api.serve
        self._handler = RegularRequestHandler(api, server)

    async def about(self) -> Response:
        return _json({"name": "minicluster", "version": "2", "extensions": ["binary_tensor_data"]})

    async def live(self) -> Response:
        return Response(status_code=200)

    async def ready(self) -> Response:
        return Response(status_code=200)

    async def model(self, name: str, version: str = "") -> Response:
        serve = self._serve
        if refused := self._unknown(name, version):
            return refused
        about = {
            "name": serve.name,
            "versions": [str(serve.version)],
            "platform": "pytorch" if serve.signature.torch else "python",
            "inputs": [_shown(spec) for spec in serve.signature.inputs],
            "outputs": [_shown(spec) for spec in serve.signature.outputs],
        }
        return _json(about)

    async def model_ready(self, name: str, version: str = "") -> Response:
        return self._unknown(name, version) or Response(status_code=200)

    async def infer(self, request: Request, name: str, version: str = "") -> Response:
        if refused := self._unknown(name, version):
            return refused
        try:
            asked = self._read(await request.body(), request.headers.get(HEADER_LENGTH, ""))
        except ValueRefused as error:
            return refusal(error)
        return await self._answer(asked)

    async def predict(self, request: Request) -> Response:
        """Take plain JSON, whatever the content type says: curl -d says that it sends a form."""
        try:
            value = json.loads(await request.body())
        except ValueError as error:
            return answer(400, f"the request is no JSON: {error}")
        return await self._answer(value)

    async def _answer(self, asked: Any) -> Response:
        try:
            return await self._handler.handle_request(asked, Asked)
        except HTTPException as error:
            return answer(error.status_code, str(error.detail))

    def _unknown(self, name: str, version: str) -> Response | None:
        """Return the refusal of a model or a version that is not here."""
        serve = self._serve
        if name == serve.name and version in ("", str(serve.version)):
            return None
        asked = f"{name[:80]} {version[:20]}".strip()
        return answer(404, f"there is no {asked} here: it is {serve.name} {serve.version}")

    def _read(self, body: bytes, head: str) -> Asked:
        if head and not (head.isdecimal() and int(head) <= len(body)):
            raise ValueRefused(f"the header {HEADER_LENGTH} is {head[:20]!r}, of {len(body)} bytes")
        size = int(head) if head else len(body)
        try:
            request: Any = json.loads(body[:size])
        except ValueError as error:
            raise ValueRefused(f"the request is no JSON: {error}") from None
        value = tensors.read_v2(request, body[size:], self._serve.signature)
        about = {"model_name": self._serve.name, "model_version": str(self._serve.version)}
        if isinstance(request.get("id"), str):
            about["id"] = request["id"]
        return Asked(value, about, binary=_wants_binary(request))


def _wants_binary(request: dict[str, Any]) -> bool:
    """Whether the answer's tensors shall be binary: all of them, or each one asked for so."""
    parameters, outputs = request.get("parameters"), request.get("outputs")
    if isinstance(parameters, dict) and parameters.get("binary_data_output"):
        return True
    asked = (
        [one.get("parameters") for one in outputs if isinstance(one, dict)]
        if isinstance(outputs, list)
        else []
    )
    return bool(asked) and all(isinstance(one, dict) and bool(one.get("binary_data")) for one in asked)


def _shown(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.value, "shape": list(spec.shape)}


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type=JSON_TYPE)
