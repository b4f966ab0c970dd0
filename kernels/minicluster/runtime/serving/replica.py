"""A rank that is a replica of a model: it starts LitServe, says when that answers, and drains it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minicluster.errors import MiniclusterError
from minicluster.runtime.paths import AttemptPaths
from minicluster.wire import RunOrder

_LOOK_S = 0.02
_KEEP_ALIVE_S = 75
"""Longer than the front leaves a connection idle: else it would send requests on closing ones."""
_LOOPBACK = ("127.", "::1", "localhost")
ADDRESS = "MINICLUSTER_ADDRESS"


class ServeImpossible(MiniclusterError):
    """The replica cannot answer requests."""


def serve(order: RunOrder, paths: AttemptPaths, commands_fd: int, report: Callable[..., None]) -> None:
    """Answer requests until the agent has the replica drained. Raises ServeImpossible.

    commands_fd: where the agent's lines come. report: called with an event for the agent.
    """
    trouble = paths.folder / "model-trouble.json"
    server, state = _server(order, paths, trouble)
    host = "127.0.0.1" if os.environ.get(ADDRESS, "127.0.0.1").startswith(_LOOPBACK) else "0.0.0.0"  # noqa: S104
    port = free_port(host)
    # Once here, so that the thread imports nothing: processes are forked beside it.
    _is_healthy(port, order.serve_secret)
    threading.Thread(target=_tell_ready, args=(port, order.serve_secret, report), daemon=True).start()
    threading.Thread(target=_follow, args=(commands_fd, state), daemon=True).start()
    try:
        server.run(
            host=host,
            port=port,
            num_api_servers=1,
            log_level="warning",
            generate_client_file=False,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
    except (RuntimeError, OSError, EOFError) as error:
        raise _explained(trouble, error) from error


def _server(order: RunOrder, paths: AttemptPaths, trouble: Path) -> tuple[Any, Any]:
    """Return LitServe's server, not started yet, and what its processes share. Raises ServeImpossible."""
    assert order.serve is not None  # noqa: S101 - the caller looked
    try:
        import litserve
        import torch

        from minicluster.runtime.serving.model_api import ModelAPI, ReplicaFiles
        from minicluster.runtime.serving.routes import Gate, add_routes
        from minicluster.runtime.serving.shared import SharedState
    except ImportError as error:
        raise ServeImpossible(
            f"this image cannot serve models: {error}",
            "It lacks the package litserve: an admin installs minicluster[serve] in the image.",
        ) from error
    options, state = order.serve.options, SharedState()
    api = ModelAPI(order.serve, ReplicaFiles(paths.payload, paths.folder.parent, trouble))
    server = litserve.LitServer(
        api,
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=1,
        timeout=options.timeout_s,
        max_payload_size=options.request_bytes,
        middlewares=[(Gate, {"secret": order.serve_secret, "state": state})],
    )
    add_routes(server, api)
    return server, state


def _explained(trouble: Path, error: BaseException) -> ServeImpossible:
    """Return why the model could not be loaded, as its process wrote it down."""
    try:
        account: dict[str, str] = json.loads(trouble.read_bytes())
    except (OSError, ValueError):
        return ServeImpossible(f"the server of the model ended: {type(error).__name__}: {error}")
    return ServeImpossible(f"the model could not be loaded: {account['message']}", account["traceback"])


def free_port(host: str) -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as free:
        free.bind((host, 0))
        return free.getsockname()[1]


def _tell_ready(port: int, secret: str, report: Callable[..., None]) -> None:
    """Report the replica's port once its model is loaded and it answers."""
    while not _is_healthy(port, secret):
        time.sleep(_LOOK_S)
    report("replica", port=port, ready=True)


def _is_healthy(port: int, secret: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health", headers={"Minicluster-Replica": secret})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _follow(commands_fd: int, state: Any) -> None:
    """Drain when the agent says so: take no more requests, answer the open ones, then end the server."""
    for command in _commands(commands_fd):
        if "leave" in command:
            state.drain()
            while state.open_requests:
                time.sleep(_LOOK_S)
            # To this process alone: LitServe then ends its own processes in order.
            os.kill(os.getpid(), signal.SIGINT)
            return


def _commands(commands_fd: int) -> Iterator[dict[str, Any]]:
    with open(commands_fd, "rb", buffering=0, closefd=False) as pipe:
        for line in pipe:
            yield json.loads(line)
