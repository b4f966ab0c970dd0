"""What the platform is made of is killed, while jobs start or run."""

from __future__ import annotations

import time

import pytest

from .cluster import LabCluster
from .faults import WITHIN_S, Events, Jobs, counted, counting, jobs, kill, other_image, ready, runs_again
from .machines.processes import wait_for

__all__ = ["jobs", "other_image", "ready"]  # fixtures
STEPS = 150


def check_complete(jobs: Jobs, job_id: int, steps: int = STEPS, nodes: int = 3) -> None:
    """Each rank's log has every line once."""
    for rank in range(nodes):
        assert counted(jobs.log(job_id, rank)) == list(range(steps)), jobs.log(job_id, rank)


def test_a_killed_hub_touches_no_job(jobs: Jobs, ready: LabCluster) -> None:
    job = jobs.submit(counting(STEPS), nodes=3)
    jobs.wait_log(job, "step 5")
    killed = kill(ready, "hub")
    wait_for(runs_again(ready, "hub", killed), "the hub to be back", WITHIN_S, 0.5)
    done = jobs.wait(job)
    assert (done["state"], done["attempt"]) == ("succeeded", 1)
    check_complete(jobs, job)


def test_a_killed_proxy_has_its_routes_again(jobs: Jobs, ready: LabCluster) -> None:
    job = jobs.submit(counting(STEPS), nodes=3)
    jobs.wait_log(job, "step 5")
    killed = kill(ready, "proxy")
    wait_for(runs_again(ready, "proxy", killed), "the proxy to be back", WITHIN_S, 0.5)
    done = jobs.wait(job)
    assert (done["state"], done["attempt"]) == ("succeeded", 1)
    check_complete(jobs, job)


@pytest.mark.parametrize("after_s", [0, 0.2, 0.5, 1, 2])
def test_a_service_killed_while_a_job_starts_starts_it_once(
    jobs: Jobs, ready: LabCluster, after_s: float
) -> None:
    events = Events.from_now(ready)
    job = jobs.submit(counting(10), nodes=3)
    time.sleep(after_s)
    kill(ready, "service")
    done = jobs.wait(job)
    assert (done["state"], done["attempt"]) == ("succeeded", 1), (done, jobs.story(job))
    check_complete(jobs, job, steps=10)
    made = events.tasks_made()
    assert len(made) == 3 and set(made.values()) == {1}, made


def test_a_service_killed_while_a_job_runs_loses_no_line(jobs: Jobs, ready: LabCluster) -> None:
    job = jobs.submit(counting(STEPS), nodes=3)
    jobs.wait_log(job, "step 5")
    kill(ready, "service")
    done = jobs.wait(job)
    assert (done["state"], done["attempt"]) == ("succeeded", 1)
    check_complete(jobs, job)
