"""What is told of a run reaches a service that can remember it; an earlier release takes the job alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.wire import JobSpec, JobState, RunOrigin

from ..display.test_render import job

SPEC = JobSpec(payload_sha256="a" * 64)
RUN = RunOrigin(source="x = 1", tags=("a",))


class JobService(ThreadingHTTPServer):
    """Refuses fields that it does not know, as each release does."""

    def __init__(self, unknown: str) -> None:
        super().__init__(("127.0.0.1", 0), Submissions)
        self.unknown = unknown
        self.bodies: list[dict[str, Any]] = []


class Submissions(BaseHTTPRequestHandler):
    server: JobService

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if self.server.unknown in (*body, *body["spec"]):
            error = {"code": "unknown_field", "message": f"{self.server.unknown} is not known", "hint": ""}
            self._answer(422, json.dumps({"error": error}))
        else:
            self._answer(201, job(JobState.QUEUED).model_dump_json())

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[JobService]:
    server = JobService(request.param)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def submit(server: JobService, spec: JobSpec) -> None:
    client = JobServiceClient(f"http://127.0.0.1:{server.server_port}/", "ada-token")
    try:
        client.submit(spec, "one-key-only", RUN)
    finally:
        client.close()


@pytest.mark.parametrize("service", ["none"], indirect=True)
def test_a_run_is_told_with_its_job(service: JobService) -> None:
    submit(service, SPEC)
    (body,) = service.bodies
    assert body["run"]["source"] == "x = 1"
    assert "seed" not in body["spec"]


@pytest.mark.parametrize("service", ["run"], indirect=True)
def test_an_earlier_release_gets_the_job_without_it(service: JobService) -> None:
    submit(service, SPEC)
    first, second = service.bodies
    assert "run" in first
    assert second == {key: value for key, value in first.items() if key != "run"}


@pytest.mark.parametrize("service", ["seed"], indirect=True)
def test_a_seed_that_nobody_would_use_is_refused(service: JobService) -> None:
    with pytest.raises(ServiceError, match="seed is not known"):
        submit(service, SPEC.model_copy(update={"seed": 7}))
