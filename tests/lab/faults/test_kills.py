"""The control plane is killed at random moments of a job's life; the job does not notice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ...kill_moments import KILLS, SEED, check_went_on, struck
from ..cluster import LabCluster
from ..machines.processes import wait_for
from .jobs import WITHIN_S, Events, Jobs, administrator, jobs, kill, other_image, ready, runs_again

__all__ = ["jobs", "other_image", "ready"]  # fixtures
pytestmark = pytest.mark.alone("how soon the product reacts")
STEPS = 60
COUNTING = f"""
import time, uuid
print('began', uuid.uuid4().hex, flush=True)
for step in range({STEPS}):
    print('step', step, time.time(), flush=True)
    time.sleep(0.1)
"""
WAITING = "import time\nwhile True: time.sleep(0.1)\n"


@pytest.fixture
def chance() -> random.Random:
    return random.Random(SEED)


def kill_role(cluster: LabCluster, role: str) -> None:
    """Kill a platform service and wait until the Swarm has brought it back."""
    killed = kill(cluster, role)
    wait_for(runs_again(cluster, role, killed), f"the {role} to be back", WITHIN_S, 0.2)


def kill_manager(jobs: Jobs) -> None:
    """Kill the manager's engine and wait until the job service answers through proxy and hub."""
    jobs.cluster.first.kill_daemon()
    jobs.nodes()


def run_one(jobs: Jobs, nodes: int, strike: Callable[[], None], moment_s: float) -> tuple[int, float]:
    """Run a job and strike at a moment of its life; return its id and how long it lived."""
    since = time.monotonic()
    with struck(strike, moment_s) as away:
        job = jobs.submit(COUNTING, nodes=nodes)
        jobs.wait(job)
        life_s = time.monotonic() - since
    check_whole(jobs, job, nodes)
    check_went_on([step_times(jobs, job, rank) for rank in range(nodes)], away)
    return job, life_s


def wait_cold(jobs: Jobs) -> None:
    """Wait until no gang is warm, so that the next job's life has a start."""
    wait_for(jobs.is_idle, "no gang to be warm", WITHIN_S, 0.2)


def check_whole(jobs: Jobs, job_id: int, nodes: int) -> None:
    """The job ended well in its first attempt, began once, and has each line once."""
    done = jobs.job(job_id)
    assert (done["state"], done["attempt"]) == ("succeeded", 1), (done, jobs.story(job_id))
    for rank in range(nodes):
        told = jobs.log(job_id, rank)
        began, *steps = told.splitlines()
        assert began.startswith("began ") and told.count("began") == 1, told
        assert [line.split()[:2] for line in steps] == [["step", str(step)] for step in range(STEPS)], told


def step_times(jobs: Jobs, job_id: int, rank: int) -> list[float]:
    return [float(line.split()[2]) for line in jobs.log(job_id, rank).splitlines()[1:]]


@pytest.fixture(scope="module")
def used(ready: LabCluster) -> LabCluster:
    """A cluster on which a job has run: the first of all lives longer than the others."""
    with administrator(ready) as jobs:
        wait_cold(jobs)
        run_one(jobs, 3, lambda: None, 0)
    return ready


@pytest.mark.timeout(600 + 60 * KILLS)
@pytest.mark.parametrize("role", ["service", "hub", "proxy"])
def test_a_kill_at_any_moment_loses_and_repeats_nothing(
    jobs: Jobs, used: LabCluster, chance: random.Random, say: Callable[[str], None], role: str
) -> None:
    wait_cold(jobs)
    job, life_s = run_one(jobs, 3, lambda: None, 0)
    events = Events.from_now(used)
    for number in range(KILLS):
        moment_s = chance.uniform(0, life_s)
        say(f"seed {SEED}: kill {number + 1} of the {role}, {moment_s:.2f} s after the submission")
        wait_cold(jobs)
        again, _ = run_one(jobs, 3, lambda: kill_role(used, role), moment_s)
        assert again == job + number + 1, "a submission that was repeated made two jobs"
    made = events.tasks_made()
    assert set(made.values()) <= {1}, made


@contextmanager
def busy_manager(jobs: Jobs) -> Iterator[int]:
    """Keep the first node's slots by a job, so that others run on the other nodes; tell its id."""
    wait_cold(jobs)
    blocker = jobs.submit(WAITING, slots_per_node=2)
    assert jobs.wait(blocker, "running")["nodes"] == [jobs.cluster.first.name]
    try:
        yield blocker
    finally:
        jobs.stop(blocker)
        jobs.wait(blocker)


@pytest.mark.timeout(600 + 120 * KILLS)
def test_a_kill_of_the_managers_engine_at_any_moment(
    jobs: Jobs, used: LabCluster, chance: random.Random, say: Callable[[str], None]
) -> None:
    """Hub, proxy and job service end with it; the job's own nodes are others."""
    with busy_manager(jobs):
        _, life_s = run_one(jobs, 2, lambda: None, 0)
    for number in range(KILLS):
        moment_s = chance.uniform(0, life_s)
        say(f"seed {SEED}: kill {number + 1} of the manager's engine, {moment_s:.2f} s into it")
        with busy_manager(jobs) as blocker:
            job, _ = run_one(jobs, 2, lambda: kill_manager(jobs), moment_s)
            assert job == blocker + 1, "a submission that was repeated made two jobs"
