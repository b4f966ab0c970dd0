"""LitServe's server, as a replica needs it: it drains, and it ends as soon as one of its processes does.

LitServe itself waits for ever if the process of the model is killed while it loads. If it is killed later,
LitServe notices that within 2 s, and then waits 30 s for answers that nobody gives any more.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import litserve
import torch
from litserve.utils import WorkerSetupStatus

from minicluster.runtime.serving.model_api import ModelAPI
from minicluster.runtime.serving.routes import READY_PATH, SECRET_HEADER, Gate, add_routes
from minicluster.runtime.serving.shared import SharedState
from minicluster.serving.calling import NotServable

_LOOK_S = 0.02
_EXITS_WITHIN_S = 1.0
_GRACE_S = 2
"""For requests that came just before the replica drained. Those before them had the time of a request."""
_KEEP_ALIVE_S = 75
"""Longer than the front leaves a connection idle: else it would send requests on closing ones."""


class _Left(Exception):
    """The order to leave came before the model was loaded."""


class ReplicaServer(litserve.LitServer):
    """Answers requests to one model.

    commands_fd: what the agent writes there is the order to leave. ready: called once, with the port.
    """

    def __init__(self, api: ModelAPI, secret: str, commands_fd: int, ready: Callable[[int], None]) -> None:
        options = api.serve.options
        self._api = api
        self._secret = secret
        self._commands_fd = commands_fd
        self._ready = ready
        self._state = SharedState()
        self._port = 0
        self._broken = ""
        super().__init__(
            api,
            accelerator="cuda" if torch.cuda.is_available() else "cpu",
            devices=1,
            timeout=options.timeout_s,
            max_payload_size=options.request_bytes,
            middlewares=[(Gate, {"secret": secret, "state": self._state})],
        )
        self.uvicorn_graceful_timeout = _GRACE_S
        add_routes(self, api)

    def answer(self, host: str) -> None:
        """Answer requests until the order to leave comes. Raises NotServable."""
        self._port = _free_port(host)
        try:
            self.run(
                host=host,
                port=self._port,
                num_api_servers=1,
                log_level="warning",
                generate_client_file=False,
                access_log=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        except _Left:
            return
        # SystemExit: somebody took the port meanwhile. The others: LitServe's manager process is gone.
        except (SystemExit, OSError, EOFError) as error:
            raise NotServable(f"the server of the model ended: {type(error).__name__}: {error}") from error
        if self._broken:
            raise NotServable(self._broken, "Its log has what it printed; its node's memory may be full.")

    def verify_worker_status(self) -> None:
        """Wait until the model is loaded. Raises NotServable if it cannot be; _Left."""
        model = self.inference_workers[0]
        while WorkerSetupStatus.READY not in self.workers_setup_status.values():
            found = wait([model.sentinel, self._commands_fd], _LOOK_S)
            if self._commands_fd in found:
                model.kill()
                raise _Left
            if found:
                raise NotServable(f"the model could not be loaded: {self._trouble(model)}")

    def _trouble(self, model: BaseProcess) -> str:
        try:
            return self._api.files.trouble.read_text()
        except OSError:
            return f"its process {_end_of(model)}; its node's memory may be full"

    def _start_worker_monitoring(self, manager: Any, uvicorn_workers: dict[int, Any]) -> None:
        """Follow the processes, now that all of them are started: no thread ran beside a fork."""
        (http_server,) = uvicorn_workers.values()
        threading.Thread(target=self._follow, args=(http_server,), daemon=True).start()

    def _follow(self, http_server: BaseProcess) -> None:
        """Tell when the model answers. End with the order to leave, or with the first process that ends."""
        processes = {"model": self.inference_workers[0], "HTTP server": http_server}
        ends = [process.sentinel for process in processes.values()]
        told = False
        while not wait([*ends, self._commands_fd], None if told else _LOOK_S):
            if not told and self._answers():
                told = True
                self._ready(self._port)
        self._drain(ends)
        for name, process in processes.items():
            if wait([process.sentinel], 0):
                # Its connections break at once, so that the front asks another replica.
                http_server.kill()
                self._broken = f"the process of the {name} {_end_of(process)}"
                break
        with suppress(OSError, EOFError):
            self._shutdown_event.set()

    def _drain(self, ends: list[int]) -> None:
        """Take no more requests, and let those that are open be answered, while the processes live."""
        self._state.drain()
        until = time.monotonic() + self._api.serve.options.timeout_s
        while self._state.open_requests and time.monotonic() < until and not wait(ends, _LOOK_S):
            pass

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", READY_PATH, headers={SECRET_HEADER: self._secret})
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _end_of(process: BaseProcess) -> str:
    """Say how a process ended."""
    process.join(_EXITS_WITHIN_S)
    code = process.exitcode or 0
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _free_port(host: str) -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as free:
        free.bind((host, 0))
        return free.getsockname()[1]
