"""Jobs by REST. Requests are retried while a component that a test broke does not answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from minicluster_hub.launch.demo import SERVICE_PATH

from ..hub.jobs import payload
from .cluster import LabCluster
from .machines import LabError
from .machines.builder import build_engine
from .machines.images import NOTEBOOK_IMAGE
from .machines.processes import wait_for
from .remains import check_nothing_of_jobs_left

WITHIN_S = 240
TERMINAL = ("succeeded", "failed", "stopped")
_RETRYABLE_STATUSES = (404, 429, 502, 503, 504, 599)
"""The proxy's answers while the hub, the service or a route is missing."""

OTHER_IMAGE = "other/notebook:1"
NO_IMAGE = f"127.0.0.1:5101/minicluster/nothing@sha256:{'0' * 64}"


def counting(steps: int, pause_s: float = 0.1) -> str:
    """Return a cell whose ranks print numbers, so that lost or repeated lines show in the log."""
    body = f"    print('step', step, flush=True)\n    time.sleep({pause_s})\n"
    return f"import time\nfor step in range({steps}):\n{body}"


def counted(log: str) -> list[int]:
    """Return the numbers that a rank of such a cell printed."""
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith("step ")]


@dataclass(frozen=True)
class Jobs:
    """A user's jobs."""

    cluster: LabCluster
    http: httpx.Client

    def submit(self, source: str, nodes: int | dict[str, int] = 1, **spec: Any) -> int:
        """Submit a cell; nodes: the number of nodes, or {"min": ..., "max": ...}."""
        body = payload(source)
        digest = hashlib.sha256(body).hexdigest()
        self._ask("PUT", f"api/blobs/{digest}", content=body)
        between = nodes if isinstance(nodes, dict) else {"min": nodes, "max": nodes}
        spec = {"payload_sha256": digest, "nodes": between, **spec}
        sent = {"idempotency_key": uuid.uuid4().hex, "spec": spec}
        return self._ask("POST", "api/jobs", json=sent).json()["id"]

    def job(self, job_id: int) -> dict[str, Any]:
        return self._ask("GET", f"api/jobs/{job_id}").json()

    def wait(self, job_id: int, *states: str, within_s: float = WITHIN_S) -> dict[str, Any]:
        """Wait until the job is in one of the states, or has ended; return it."""
        until = time.monotonic() + within_s
        while (job := self.job(job_id))["state"] not in (*states, *TERMINAL):
            assert time.monotonic() < until, f"job {job_id} is {job['state']}: {job}\n{self.history(job_id)}"
            time.sleep(0.2)
        return job

    def wait_log(self, job_id: int, text: str, rank: int = 0, within_s: float = WITHIN_S) -> None:
        """Wait until a rank has printed a text; on failure, the error says what the job did."""
        try:
            wait_for(lambda: text in self.log(job_id, rank), f"{text!r} of job {job_id}", within_s, 0.2)
        except LabError as error:
            wrote = self.log(job_id, rank)[-1000:]
            raise LabError(
                f"{error}\nrank {rank} wrote: {wrote!r}\n{self.job(job_id)}\n{self.history(job_id)}"
            ) from None

    def stop(self, job_id: int) -> None:
        self._ask("POST", f"api/jobs/{job_id}/stop")

    def stop_all(self) -> None:
        """Stop jobs that a failed test left."""
        for job in self._ask("GET", "api/jobs", params={"state": "open"}).json()["jobs"]:
            self.stop(job["id"])

    def log(self, job_id: int, rank: int = 0, attempt: int | None = None) -> str:
        """Return a rank's output, by default that of the newest attempt."""
        asked = {"rank": rank} if attempt is None else {"rank": rank, "attempt": attempt}
        return self._ask("GET", f"api/jobs/{job_id}/log", params=asked).text

    def history(self, job_id: int) -> str:
        lines = self._ask("GET", f"api/jobs/{job_id}/history").json()["lines"]
        return "\n".join(f"{line['kind']} {line['text']}" for line in lines)

    def why(self, job_id: int) -> str:
        """Return why a job waits, with its ranks' stacks."""
        return self._ask("GET", f"api/jobs/{job_id}/why").text

    def active_policy(self) -> str:
        return self._ask("GET", "api/policy").json()["in_force"]["choice"]["policy"]

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self._ask("GET", "api/nodes").json()["nodes"]}

    def is_idle(self) -> bool:
        """Whether all nodes are up and no job holds a slot."""
        nodes = self.nodes().values()
        return len(nodes) == len(self.cluster.lab.nodes) and all(
            node["up"] and not any(slot.get("job_id") or slot.get("warm") for slot in node["slots"])
            for node in nodes
        )

    def _ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        until = time.monotonic() + WITHIN_S
        while True:
            try:
                answer = self.http.request(method, path, **arguments)
                if not (answer.status_code in _RETRYABLE_STATUSES or answer.is_redirect):
                    break  # without the route to the service, the hub would redirect to its login page
                trouble = f"{answer.status_code} {answer.text[:300]}"
            except httpx.TransportError as error:
                trouble = repr(error)
            assert time.monotonic() < until, f"{method} {path}: {trouble}"
            time.sleep(0.5)
        assert not answer.is_error, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer


async def _token(cluster: LabCluster) -> str:
    async with cluster.person() as admin:
        path = f"/hub/api/users/{admin.visitor.name}/tokens"
        made = await admin.visitor.call("POST", path, "/hub/", json={"note": "faults"})
        return made["token"]


@pytest.fixture(scope="module")
def other_image(standing: LabCluster) -> str:
    """The notebook image under a name that no node has: nodes have its layers, but not its manifest."""
    engine, name = build_engine(), f"{standing.lab.registry.host}/{OTHER_IMAGE}"
    engine.docker("tag", NOTEBOOK_IMAGE, name)
    engine.docker("push", "--quiet", name)
    (digest,) = {
        one.partition("@")[2]
        for one in json.loads(engine.docker("image", "inspect", "--format", "{{json .RepoDigests}}", name))
        if one.startswith(name.partition(":1")[0].rpartition(":")[0]) and "/other/" in one
    }
    return f"127.0.0.1:5101/{OTHER_IMAGE.partition(':')[0]}@{digest}"


@pytest.fixture(scope="module")
def ready(standing: LabCluster, other_image: str) -> LabCluster:
    """The cluster with images that jobs may request, and with a short time for warm gangs."""
    standing.set_options(
        f"--service-option=--SwarmEngine.images={other_image}",
        f"--service-option=--SwarmEngine.images={NO_IMAGE}",
        "--service-option=--MiniclusterHub.keep_warm_s=0.2",
    )
    return standing


@contextmanager
def administrator(cluster: LabCluster, *, log_in: bool = False) -> Iterator[Jobs]:
    """Yield an administrator's jobs. log_in: log in for a new token, as a test; else reuse the first one."""
    if log_in or not cluster.token:
        cluster.token = asyncio.run(_token(cluster))
    headers = {"Authorization": f"token {cluster.token}"}
    with httpx.Client(
        base_url=f"{cluster.url}{SERVICE_PATH}", headers=headers, verify=False, trust_env=False, timeout=30
    ) as http:
        yield Jobs(cluster, http)


@pytest.fixture
def jobs(ready: LabCluster) -> Iterator[Jobs]:
    """An administrator's jobs; afterwards, check that all nodes are up and nothing of jobs is left."""
    with administrator(ready) as found:
        found.stop_all()
        wait_idle(found)
        yield found
        found.stop_all()
        wait_idle(found)
        check_nothing_of_jobs_left(ready)


def wait_idle(jobs: Jobs) -> None:
    """Wait until all nodes are up and all slots free; on failure, the error shows the nodes' states."""
    try:
        wait_for(jobs.is_idle, "all nodes to be up and idle", WITHIN_S, 0.5)
    except LabError as error:
        raise AssertionError(f"{error}: {jobs.nodes()}") from error
