"""LitServe's server, as a replica needs it: it drains, and ends when one of its processes ends or hangs.

LitServe itself waits for ever if the process of the model is killed while it loads. If it is killed later,
LitServe notices that within 2 s, and then waits 30 s for answers that nobody gives any more.
"""

from __future__ import annotations

import http.client
import os
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

from minicluster.runtime.diagnosis.stacks import DUMP_SIGNAL
from minicluster.runtime.serving.model_api import ModelAPI
from minicluster.runtime.serving.pipes import pipes
from minicluster.runtime.serving.routes import READY_PATH, SECRET_HEADER, Gate, add_routes
from minicluster.runtime.serving.shared import SharedState
from minicluster.runtime.serving.whole_answers import WholeAnswers
from minicluster.serving.calling import NotServable

_LOOK_S, _LOOK_AT_MODEL_S = 0.02, 1.0
_HANGS_AFTER = 2.0
"""Times as long as a request may take. Once would be too early: a model may compile at its first request."""
_DUMPS_WITHIN_S = 0.5
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
        self._broken: NotServable | None = None
        self._interrupted = False
        super().__init__(
            api,
            accelerator="cuda" if torch.cuda.is_available() else "cpu",
            devices=1,
            timeout=options.timeout_s,
            max_payload_size=options.request_bytes,
            middlewares=[(Gate, {"secret": secret, "state": self._state})],
        )
        self.uvicorn_graceful_timeout = _GRACE_S
        add_routes(self, api, self._state)

    def answer(self, host: str) -> None:
        """Answer requests until the order to leave comes. Raises NotServable; KeyboardInterrupt."""
        self._port = _free_port(host)
        try:
            self.run(
                host=host,
                port=self._port,
                num_api_servers=1,
                log_level="warning",
                generate_client_file=False,
                access_log=False,
                http=WholeAnswers,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        except _Left:
            return
        # SystemExit: somebody took the port meanwhile. The others: LitServe's manager process is gone.
        except (SystemExit, OSError, EOFError) as error:
            raise NotServable(f"the server of the model ended: {type(error).__name__}: {error}") from error
        if self._interrupted:
            raise KeyboardInterrupt
        if self._broken is not None:
            raise self._broken

    def _init_manager(self, num_api_servers: int) -> Any:
        """Have requests and answers go through pipes; the manager has the state of the model alone."""
        manager = super()._init_manager(num_api_servers)
        requests, self._transport = pipes()
        self.litapi_request_queues[self._api.api_path] = requests
        return manager

    def verify_worker_status(self) -> None:
        """Wait until the model is loaded. Raises NotServable if it cannot be; _Left; KeyboardInterrupt."""
        model = self.inference_workers[0]
        try:
            self._wait_for(model)
        except (_Left, KeyboardInterrupt):
            model.kill()
            raise

    def _wait_for(self, model: BaseProcess) -> None:
        while WorkerSetupStatus.READY not in self.workers_setup_status.values():
            found = wait([model.sentinel, self._commands_fd], _LOOK_S)
            if self._commands_fd in found:
                raise _Left
            if found:
                raise NotServable(f"the model could not be loaded: {self._trouble(model)}")

    def _trouble(self, model: BaseProcess) -> str:
        try:
            return self._api.files.trouble.read_text()
        except OSError:
            return f"its process {_end_of(model)}; its node's memory may be full"

    def _start_worker_monitoring(self, manager: Any, uvicorn_workers: dict[str, Any]) -> None:
        """Follow the processes, now that all of them are started: no thread ran beside a fork."""
        (http_server,) = uvicorn_workers.values()
        threading.Thread(target=self._follow, args=(http_server,), daemon=True).start()

    def _perform_graceful_shutdown(
        self, manager: Any, uvicorn_workers: dict[str, Any], shutdown_reason: str = "normal"
    ) -> None:
        """End all processes. Remember an interrupt: LitServe does not raise it again."""
        self._interrupted = shutdown_reason == "keyboard_interrupt"
        super()._perform_graceful_shutdown(manager, uvicorn_workers, shutdown_reason)

    def _follow(self, http_server: BaseProcess) -> None:
        """End with the order to leave, with the first process that ends, or when the model hangs."""
        processes = {"model": self.inference_workers[0], "HTTP server": http_server}
        ends = [process.sentinel for process in processes.values()]
        self._watch([*ends, self._commands_fd])
        if self._broken is None:
            self._drain(ends)
        ended = [name for name, process in processes.items() if wait([process.sentinel], 0)]
        if ended or self._broken is not None:
            # Its connections break at once, so that the front asks another replica.
            http_server.kill()
        if ended and self._broken is None:
            message = f"the process of the {ended[0]} {_end_of(processes[ended[0]])}"
            self._broken = NotServable(message, "Its log has what it printed; its node's memory may be full.")
        stop: Any = self._shutdown_event
        with suppress(OSError, EOFError):
            stop.set()

    def _watch(self, ends: list[int]) -> None:
        """Tell when the model answers. Return when one of `ends` comes, or the model hangs."""
        told = False
        while not wait(ends, _LOOK_AT_MODEL_S if told else _LOOK_S):
            if not told:
                told = self._answers()
                if told:
                    self._ready(self._port)
            elif (silent_s := self._state.silent_s(time.monotonic())) > _HANGS_AFTER * self._timeout_s:
                self._dump_stack()
                message = f"the model hangs: it has answered nothing for {silent_s:.0f} s, and requests wait"
                self._broken = NotServable(message, "The end of its log has where it was.")
                return

    @property
    def _timeout_s(self) -> float:
        """How long a request may take."""
        return self._api.serve.options.timeout_s

    def _dump_stack(self) -> None:
        """Have the process of the model write where it is into the log."""
        model = self.inference_workers[0]
        with suppress(ProcessLookupError):
            os.kill(model.pid, DUMP_SIGNAL)
        model.join(_DUMPS_WITHIN_S)

    def _drain(self, ends: list[int]) -> None:
        """Take no more requests, and let those that are open be answered, while the processes live."""
        self._state.drain()
        until = time.monotonic() + self._timeout_s
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
