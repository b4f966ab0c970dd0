"""Two job services on one PostgreSQL: the leader acts, the standby forwards requests and takes over."""

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

from minicluster.client.client import JobServiceClient
from minicluster.client.sse import follow
from minicluster.wire import JobState

from ...patience import WITHIN_S, until
from ..cells import submit
from ..two_services import TwoServices

OTHERS = [
    pytest.param(after_s, marks=pytest.mark.full("other moments")) for after_s in (0.0, 0.15, 0.4, 2.5, 4.0)
]
COUNTING = """
import os, time
for step in range(STEPS):
    print("line", step, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def pair(postgres_server, tmp_path_factory):
    with postgres_server.connect() as connection:
        connection.execute("CREATE DATABASE test_two_services")
    made = TwoServices(tmp_path_factory.mktemp("two"), postgres_server.url("test_two_services"))
    try:
        made.leader()
        yield made
    finally:
        made.close()
        with postgres_server.connect() as connection:
            connection.execute("DROP DATABASE test_two_services WITH (FORCE)")


def asks(service, retry_for_s=WITHIN_S):
    return JobServiceClient(service.url, "ada-token", retry_for_s=retry_for_s)


def count(client, steps):
    return submit(client, COUNTING.replace("STEPS", str(steps)), 2, 2)


def test_who_stands_by_passes_on_what_is_read_and_what_is_written(pair):
    _, other = pair.leader()
    client = asks(other)
    job = count(client, 3)
    until(lambda: client.job(job).state.terminal)
    assert client.job(job).state is JobState.SUCCEEDED
    assert client.log(job, 0, 1 << 20)[0].splitlines()[-1] == "line 2"
    nodes = httpx.get(
        f"{other.url}api/nodes", headers={"Authorization": "token ada-token"}, timeout=WITHIN_S
    ).json()
    assert [node["name"] for node in nodes["nodes"]] == ["node-1", "node-2", "node-3"]
    client.close()


_ALWAYS_NEW = re.compile(rb'[0-9]+[.][0-9]+|(?<="memory_bytes":)[0-9]+')


def asked(service, method, path, name):
    """Return the comparable part of an answer: only its type if the content always differs."""
    headers = {"Authorization": f"token {name}-token", "Minicluster-Wire": "1"} if name else {}
    body = b"[" if method in ("POST", "PUT") else None
    with httpx.stream(method, service.url + path, headers=headers, content=body, timeout=WITHIN_S) as answer:
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        # Each page contains a different token.
        changes = kind in ("text/event-stream", "text/html") or path in ("metrics", "api/policy/what-if")
        text = b"" if changes else _ALWAYS_NEW.sub(b"a time or a use", answer.read())
        return answer.status_code, kind, answer.headers.get("Location", "").partition("?")[0], text


def routes(service, job):
    """Yield each method and path of the OpenAPI document, and of pages, with a job's id filled in."""
    filled = {"job_id": str(job), "sha256": "0" * 64, "digest": "sha256:" + "0" * 64, "step": "1"}
    paths = httpx.get(f"{service.url}api/openapi.json", timeout=WITHIN_S).json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            # Requests with a body get an invalid one, so that they change nothing.
            harmless = method in ("get", "head") or "application/json" in str(operation.get("requestBody"))
            if harmless and not path.startswith(("/api/tasks", "/api/data-agents", "/api/keepers")):
                yield method.upper(), re.sub(r"{(\w+)}", lambda part: filled.get(part[1], "x"), path)[1:]
    yield from (("GET", page) for page in ("", "jobs", f"jobs/{job}", "queue", "nodes", "there-is-no-such"))


@pytest.mark.full("two minutes of all routes; in the gate some pass through")
def test_who_stands_by_answers_each_route_as_the_leader_does(pair):
    leader, other = pair.leader()
    client = asks(leader)
    head = {"Authorization": "token root-token"}
    chosen = httpx.put(f"{leader.url}api/policy", headers=head, json={"policy": "fifo"}, timeout=WITHIN_S)
    assert chosen.status_code == 200
    running = submit(client, "import time; time.sleep(1000)", 3, 3)
    until(lambda: client.job(running).state is JobState.RUNNING)
    waiting = submit(client, "pass", 3, 3)
    try:
        until(lambda: client.job(waiting).reason)
        compare(leader, other, waiting)
        data = httpx.get(f"{other.url}api/policy", headers=head, timeout=WITHIN_S).json()
        assert data["in_force"]["choice"]["policy"] == "fifo"
    finally:
        client.stop(waiting)
        client.stop(running)
        client.close()


def compare(leader, other, job):
    """Send all requests to both services, as a user, an administrator and nobody; compare the answers."""
    compared = [(*route, name) for route in routes(leader, job) for name in ("ada", "root", "")]
    assert ("GET", "api/queue/me", "ada") in compared
    for one in compared:
        assert asked(leader, *one) == asked(other, *one), one


def test_while_nobody_leads_that_is_told_and_when_to_ask_again(pair):
    leader, other = pair.leader()
    leader.send(signal.SIGSTOP)
    seen = []
    try:
        until(lambda: (seen.append(unled(other)) or seen[-1] is not None) or pair.leads(other))
        assert httpx.get(f"{other.url}health", timeout=WITHIN_S).status_code == 200
    finally:
        leader.send(signal.SIGCONT)
    status, retry_after, code = next(one for one in seen if one)
    assert (status, code) == (503, "no_leader")
    assert int(retry_after) > 0
    pair.leader()


def unled(service):
    """Return a service's answer that nobody leads; None if a service leads."""
    with suppress(httpx.TimeoutException):
        answer = httpx.get(f"{service.url}api/jobs", headers={"Authorization": "token ada-token"}, timeout=9)
        if answer.status_code == 503:
            return answer.status_code, answer.headers["Retry-After"], answer.json()["error"]["code"]
    return None


@pytest.mark.full("in the gate requests go on")
def test_a_stream_goes_on_with_the_next_leader(pair):
    leader, other = pair.leader()
    client = asks(other)
    job = count(client, 60)
    until(lambda: client.job(job).state is JobState.RUNNING)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(lambda: list(follow(client, job)))
        leader.send(signal.SIGSTOP)
        until(lambda: pair.leads(other))
        leader.send(signal.SIGCONT)
        events = following.result(WITHIN_S)
    assert events
    assert client.job(job).state is JobState.SUCCEEDED
    client.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@pytest.mark.parametrize("after_s", [1.0, *OTHERS])
def test_the_other_takes_over_at_any_moment(pair, number, after_s):
    leader, other = pair.leader()
    client = asks(other)
    job = count(client, 40)
    time.sleep(after_s)
    leader.send(number)
    began = time.monotonic()
    until(lambda: pair.leads(other))
    took_s = time.monotonic() - began
    print(f"{number.name} after {after_s} s: taken over after {took_s:.2f} s")
    leader.send(signal.SIGCONT)
    until(lambda: client.job(job).state.terminal)
    record = client.job(job)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1)
    for rank in (0, 1):
        lines = client.log(job, rank, 1 << 20)[0].splitlines()
        assert lines == [f"line {step}" for step in range(40)]
    client.close()
