"""The module beside the notebooks that compare policies: the former policy comes back, whatever happens."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ...patience import until

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
sys.path.append(str(NOTEBOOKS))
policy_trial = importlib.import_module("policy_trial")

BEFORE = {"policy": "backfill", "placement": "pack", "options": {}}
FIFO = {"policy": "fifo", "placement": "spread"}
KILLED = """
import os, signal, policy_trial

with policy_trial.set_back():
    policy_trial.choose({"policy": "fifo", "placement": "spread"})
    os.kill(os.getpid(), signal.SIGKILL)
"""


class PolicyService(ThreadingHTTPServer):
    """Answers the requests about the policy. choices: the last is active. failures: of the next changes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PolicyRequest)
        self.choices: list[dict[str, Any]] = [BEFORE]
        self.failures: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class PolicyRequest(BaseHTTPRequestHandler):
    server: PolicyService

    def do_GET(self) -> None:
        self._answer(200, {"in_force": {"choice": self.server.choices[-1]}})

    def do_PUT(self) -> None:
        choice = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] == "token reads-only":
            return self._answer(403, {"error": {"message": "the token lacks a scope"}})
        if self.server.failures:
            return self._answer(self.server.failures.pop(0), {})
        self.server.choices.append(choice)
        return self.do_GET()

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[PolicyService]:
    with PolicyService() as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("MINICLUSTER_URL", server.url)
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "chooses")
        yield server
        server.shutdown()


def test_the_former_policy_comes_back(service: PolicyService) -> None:
    with policy_trial.set_back():
        policy_trial.choose(FIFO)
        assert policy_trial.active() == FIFO
    assert service.choices == [BEFORE, BEFORE, FIFO, BEFORE]


def test_it_comes_back_after_an_error(service: PolicyService) -> None:
    with pytest.raises(ZeroDivisionError), policy_trial.set_back():
        policy_trial.choose(FIFO)
        _ = 1 / 0
    assert service.choices == [BEFORE, BEFORE, FIFO, BEFORE]


def test_it_comes_back_when_the_kernel_is_killed(service: PolicyService) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "PYTHONPATH": str(NOTEBOOKS)})
    assert killed.returncode == -signal.SIGKILL
    until(lambda: service.choices == [BEFORE, BEFORE, FIFO, BEFORE])


def test_it_comes_back_when_the_service_was_away(service: PolicyService) -> None:
    with policy_trial.set_back():
        policy_trial.choose(FIFO)
        service.failures.append(503)
    assert service.choices == [BEFORE, BEFORE, FIFO, BEFORE]


def test_what_was_not_set_back_is_told(service: PolicyService) -> None:
    told = "backfill with the placement pack was not set back"
    with pytest.raises(RuntimeError, match=told), policy_trial.set_back():
        policy_trial.choose(FIFO)
        service.failures.append(400)
    assert service.choices == [BEFORE, BEFORE, FIFO]


def test_who_may_not_choose_is_told_why(service: PolicyService) -> None:
    with pytest.raises(PermissionError, match="lacks a scope"), policy_trial.set_back("reads-only"):
        policy_trial.choose(FIFO)
    assert service.choices == [BEFORE]
