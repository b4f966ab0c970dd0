"""The control plane is killed at random moments of a job; the job is not affected."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ...kill_moments import KILLS, SEED, check_went_on, struck
from ..cluster import LabCluster
from ..jobs import Jobs, administrator, counting, wait_idle
from .inject import kill_and_wait, kill_managers_engine
from .promises import TasksMade, check_all_steps, check_ran_once

pytestmark = pytest.mark.alone("how long the ranks' steps pause while something is away")
STEPS = 50
COUNTING = f"""
import time
for step in range({STEPS}):
    print('step', step, time.time(), flush=True)
    time.sleep(0.1)
"""
BUSY_STEPS = 200
"""Steps of jobs that outlast a parallel short job."""
WHILE_IT_STARTS_S = {"service": (0.0, 0.2, 0.5, 1.0, 2.0)}
"""The job service is also killed while it starts a job; others are killed only at random moments."""


@pytest.fixture
def chance() -> random.Random:
    return random.Random(SEED)


def run_one(jobs: Jobs, nodes: int, strike: Callable[[], None], moment_s: float) -> tuple[int, float]:
    """Run a job, and strike at a moment of its run; return its id and duration."""
    since = time.monotonic()
    with struck(strike, moment_s) as away:
        job = jobs.submit(COUNTING, nodes=nodes)
        jobs.wait(job)
        life_s = time.monotonic() - since
    check_ran_once(jobs, job, nodes, STEPS)
    check_went_on([step_times(jobs, job, rank) for rank in range(nodes)], away)
    return job, life_s


def step_times(jobs: Jobs, job_id: int, rank: int) -> list[float]:
    return [float(line.split()[2]) for line in jobs.log(job_id, rank).splitlines()]


@pytest.fixture(scope="module")
def life_s(ready: LabCluster) -> float:
    """The duration of such a job without a kill; a cluster's first job takes longer."""
    with administrator(ready) as jobs:
        for _ in range(2):
            wait_idle(jobs)
            _, life_s = run_one(jobs, 3, lambda: None, 0)
    return life_s


@pytest.mark.timeout(900 + 60 * KILLS)
@pytest.mark.parametrize("role", ["service", "hub", "proxy"])
def test_a_kill_at_any_moment_loses_and_repeats_nothing(
    jobs: Jobs, ready: LabCluster, life_s: float, chance: random.Random, say: Callable[[str], None], role: str
) -> None:
    last = 0
    moments = [*WHILE_IT_STARTS_S.get(role, ()), *(chance.uniform(0, life_s) for _ in range(KILLS))]
    for moment_s in moments:
        say(f"seed {SEED}: the {role} is killed {moment_s:.2f} s after the submission")
        wait_idle(jobs)
        made = TasksMade.from_now(ready)
        job, _ = run_one(jobs, 3, lambda: kill_and_wait(ready, role), moment_s)
        made.check_each_once(at_least=3)
        assert last in (0, job - 1), "a submission that was repeated made two jobs"
        last = job


@contextmanager
def busy_manager(jobs: Jobs) -> Iterator[int]:
    """Run a job that takes the manager's slots, so that others run elsewhere; yield its id.

    It ends with the manager's engine; check that it is started once again and its log is complete.
    """
    wait_idle(jobs)
    busy = jobs.submit(counting(BUSY_STEPS), slots_per_node=2)
    assert jobs.wait(busy, "running")["nodes"] == [jobs.cluster.first.name]
    yield busy
    done = jobs.wait(busy)
    assert (done["state"], done["attempt"]) == ("succeeded", 2), (done, jobs.history(busy))
    check_all_steps(jobs, busy, ranks=1, steps=BUSY_STEPS)


@pytest.mark.timeout(600 + 120 * KILLS)
def test_a_kill_of_the_managers_engine_at_any_moment(
    jobs: Jobs, ready: LabCluster, life_s: float, chance: random.Random, say: Callable[[str], None]
) -> None:
    """Hub, proxy and job service end with it. A job elsewhere is unaffected; one on the manager restarts."""

    def strike() -> None:
        kill_managers_engine(ready)
        jobs.nodes()  # until the job service answers through proxy and hub

    for _ in range(KILLS):
        moment_s = chance.uniform(0, life_s)
        say(f"seed {SEED}: the manager's engine is killed {moment_s:.2f} s after the submission")
        with busy_manager(jobs) as busy:
            job, _ = run_one(jobs, 2, strike, moment_s)
            assert job == busy + 1, "a submission that was repeated made two jobs"
