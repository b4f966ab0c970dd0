"""Runs a notebook's cells through its server: sends them over the kernel's websocket, collects outputs."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nbformat import NotebookNode, from_dict
from nbformat.v4 import output_from_msg
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from minicluster_hub.launch.errors import VisitFailed
from minicluster_hub.launch.visitor import Visitor

_CONNECT_S = 60.0
"""As for other requests of a visitor: a kernel that starts on a busy machine does not answer at once."""
_SHOWN = ("stream", "display_data", "execute_result", "error")


class KernelConnection:
    """A running kernel at the other end of a websocket."""

    def __init__(self, connection: WebSocketClientConnection) -> None:
        self._connection = connection
        self._session = uuid.uuid4().hex

    def close(self) -> None:
        """Close the connection, as closing the page does; the kernel keeps running."""
        self._connection.close()

    async def run(self, source: str) -> list[NotebookNode]:
        """Run a cell and return its outputs in the form that notebook files have."""
        outputs: list[NotebookNode] = []
        shown: dict[str, NotebookNode] = {}
        async for message in self._answers(source, {}):
            display_id = message["content"].get("transient", {}).get("display_id", "")
            if message["msg_type"] == "clear_output":
                outputs.clear()
            elif message["msg_type"] == "update_display_data" and display_id in shown:
                shown[display_id].update(from_dict(_picture(message)))
            elif message["msg_type"] in _SHOWN:
                _add(outputs, output_from_msg(message))
                shown[display_id] = outputs[-1]
        return outputs

    async def evaluate(self, expression: str) -> str:
        """Return the repr of an expression's value."""
        async for message in self._answers("", {"value": expression}):
            if message["msg_type"] == "execute_reply":
                value = message["content"]["user_expressions"]["value"]
                if value["status"] == "ok":
                    return value["data"]["text/plain"]
                raise VisitFailed(f"the kernel cannot evaluate {expression}: {value.get('evalue')}")
        raise VisitFailed(f"the kernel did not return the value of {expression}")

    async def _answers(self, source: str, expressions: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Yield the kernel's messages about one request, until its reply and its state idle have come."""
        request = self._request(source, expressions)
        await self._connection.write_message(json.dumps(request))
        missing = {"execute_reply", "idle"}
        while missing:
            frame = await self._connection.read_message()
            if frame is None:
                raise VisitFailed("the connection to the kernel was closed")
            message = json.loads(frame)
            if message["parent_header"].get("msg_id") != request["header"]["msg_id"]:
                continue
            missing -= {message["msg_type"], message["content"].get("execution_state", "")}
            yield message

    def _request(self, source: str, expressions: dict[str, str]) -> dict[str, Any]:
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "session": self._session,
            "username": "",
            "version": "5.3",
        }
        content = {
            "code": source,
            "silent": False,
            "store_history": bool(source),
            "user_expressions": expressions,
            "allow_stdin": False,
            "stop_on_error": True,
        }
        return {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}


def _picture(message: dict[str, Any]) -> dict[str, Any]:
    return {part: message["content"][part] for part in ("data", "metadata")}


def _add(outputs: list[NotebookNode], output: NotebookNode) -> None:
    """Add an output. Text joins the output before it if both are of the same stream, as in a notebook."""
    last = outputs[-1] if outputs else None
    if last and output.output_type == "stream" == last.output_type and output.name == last.name:
        last.text += output.text
    else:
        outputs.append(output)


@asynccontextmanager
async def open_kernel(visitor: Visitor, notebook: str) -> AsyncIterator[KernelConnection]:
    """Open a notebook's session as JupyterLab does; end its kernel on exit."""
    here = visitor.server_path
    wanted = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": "python3"}}
    session = await visitor.call("POST", f"{here}api/sessions", here, json=wanted)
    channels = f"{here}api/kernels/{session['kernel']['id']}/channels"
    address = f"{visitor.url.replace('http', 'ws', 1)}{channels}?session_id={session['id']}"
    headers = {"Cookie": visitor.cookies_for(channels)}
    request = HTTPRequest(address, headers=headers, validate_cert=visitor.verify, request_timeout=_CONNECT_S)
    connection = await websocket_connect(request, max_message_size=2**28)
    try:
        yield KernelConnection(connection)
    finally:
        connection.close()
        await visitor.call("DELETE", f"{here}api/sessions/{session['id']}", here)
