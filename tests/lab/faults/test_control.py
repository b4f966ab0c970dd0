"""The job service is killed at given moments of a job's start; at random ones all else is, in test_kills."""

from __future__ import annotations

import time

import pytest

from ..cluster import LabCluster
from .jobs import Events, Jobs, counted, counting, jobs, kill, other_image, ready

__all__ = ["jobs", "other_image", "ready"]  # fixtures
pytestmark = pytest.mark.alone("how soon the product reacts")


def check_complete(jobs: Jobs, job_id: int, steps: int, nodes: int = 3) -> None:
    """Each rank's log has every line once."""
    for rank in range(nodes):
        assert counted(jobs.log(job_id, rank)) == list(range(steps)), jobs.log(job_id, rank)


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
