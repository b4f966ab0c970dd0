"""Two job services on one PostgreSQL: one acts, the other one answers what is read and takes over."""

import signal
import time

import httpx
import pytest

from minicluster.client import Service
from minicluster.wire import JobState

from ..patience import WITHIN_S, until
from .cells import submit
from .two_services import TwoServices

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


def asks(service, patience_s=WITHIN_S):
    return Service(service.url, "ada-token", patience_s=patience_s)


def count(client, steps):
    return submit(client, COUNTING.replace("STEPS", str(steps)), 2, 2)


def test_who_stands_by_answers_what_is_read_and_passes_on_what_is_written(pair):
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
