"""An administrator changes the policy while jobs run; preempted jobs resume later."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from .. import messages
from .cluster import LabCluster
from .faults.inject import kill_and_wait, task_containers
from .jobs import WITHIN_S, Jobs
from .machines.processes import wait_for
from .training import EVERY, TRAINING

WHOLE_NODES = {"slots_per_node": 2}
ENDLESS = "import time\nprint('here', flush=True)\nwhile True: time.sleep(0.1)\n"
SHORT = "import time\nprint('here', flush=True)\ntime.sleep(8)\n"


@pytest.fixture(scope="module")
def ready(standing: LabCluster) -> LabCluster:
    """The cluster with short times for warm gangs, and until jobs may be moved."""
    standing.set_options(
        "--service-option=--MiniclusterHub.keep_warm_s=0.2", "--service-option=--MiniclusterHub.min_run_s=1"
    )
    return standing


@pytest.fixture
def jobs(jobs: Jobs) -> Iterator[Jobs]:
    """An administrator's jobs; afterwards, the default policy is active again."""
    yield jobs
    activate(jobs, "backfill")


def activate(jobs: Jobs, policy: str) -> None:
    answer = jobs.http.put("api/policy", json={"policy": policy, "placement": "pack"})
    assert answer.is_success and jobs.active_policy() == policy, answer.text


def began(jobs: Jobs, job_id: int, attempt: int) -> tuple[int, int]:
    """Wait for an attempt of a training; return its first step and its number of ranks."""

    def resumed() -> re.Match[str] | None:
        if jobs.job(job_id)["attempt"] < attempt:
            return None
        return re.search(r"resumed (\d+) on (\d+)", jobs.log(job_id, attempt=attempt))

    wait_for(lambda: bool(resumed()), f"attempt {attempt} of job {job_id}", WITHIN_S, 0.2)
    found = resumed()
    assert found
    return int(found[1]), int(found[2])


def wait_snapshot(jobs: Jobs, job_id: int) -> None:
    """Wait until a job has a snapshot, so that it may be moved."""

    def kept() -> bool:
        return bool(jobs.http.get(f"api/jobs/{job_id}/snapshots").json()["snapshots"])

    wait_for(kept, f"a snapshot of job {job_id}", WITHIN_S, 0.2)


def all_containers(cluster: LabCluster) -> list[list[str]]:
    return [task_containers(cluster, node) for node in cluster.lab.nodes]


def test_no_policy_touches_a_running_job_when_it_is_activated(jobs: Jobs, standing: LabCluster) -> None:
    running = jobs.submit(TRAINING, nodes=3, **WHOLE_NODES)
    wait_snapshot(jobs, running)
    waiting = jobs.submit(SHORT, nodes=1, **WHOLE_NODES)
    before = all_containers(standing)
    reasons = set()
    for policy in ("backfill", "priority", "fair_share", "round_robin", "fifo"):
        activate(jobs, policy)
        wait_for(lambda: bool(jobs.job(waiting)["reason"]), "a reason", WITHIN_S, 0.2)
        reasons.add(jobs.job(waiting)["reason"])
    assert all_containers(standing) == before
    assert (jobs.job(running)["attempt"], jobs.job(running)["state"]) == (1, "running"), jobs.history(running)
    assert jobs.job(waiting)["state"] == "queued" and all(f"job {running}" in reason for reason in reasons)


def test_a_job_makes_room_for_an_urgent_one_and_goes_on_on_another_node(
    jobs: Jobs, standing: LabCluster
) -> None:
    activate(jobs, "priority")
    others = [jobs.submit(ENDLESS, **WHOLE_NODES) for _ in standing.lab.nodes[1:]]
    for other in others:
        jobs.wait_log(other, "here")
    moved = jobs.submit(TRAINING, priority=20, **WHOLE_NODES)
    wait_snapshot(jobs, moved)
    (first_node,) = jobs.job(moved)["nodes"]
    urgent = jobs.submit(ENDLESS, priority=60, **WHOLE_NODES)
    jobs.wait_log(urgent, "here")
    assert jobs.job(urgent)["nodes"] == [first_node]
    assert messages.MAKES_ROOM.format(job=urgent) in jobs.history(moved)
    jobs.stop(others[0])
    step, _ = began(jobs, moved, attempt=2)
    assert step >= EVERY and jobs.job(moved)["nodes"] != [first_node], jobs.history(moved)


def test_an_elastic_job_shrinks_for_another_and_grows_back(jobs: Jobs) -> None:
    activate(jobs, "elastic_fifo")
    job = jobs.submit(TRAINING, nodes={"min": 1, "max": 3}, **WHOLE_NODES)
    wait_snapshot(jobs, job)
    assert began(jobs, job, attempt=1) == (0, 6)
    other = jobs.submit(ENDLESS, **WHOLE_NODES)
    jobs.wait_log(other, "here")
    shrunk = began(jobs, job, attempt=2)
    jobs.stop(other)
    assert jobs.wait(other)["state"] == "stopped", jobs.history(other)
    grown = began(jobs, job, attempt=3)
    assert (shrunk[1], grown[1]) == (4, 6), jobs.history(job)
    assert EVERY <= shrunk[0] <= grown[0]


def test_a_policy_stays_active_when_the_service_starts_again(jobs: Jobs, standing: LabCluster) -> None:
    activate(jobs, "las")
    kill_and_wait(standing, "service")
    assert jobs.wait(jobs.submit(SHORT))["state"] == "succeeded"
    assert jobs.active_policy() == "las"
