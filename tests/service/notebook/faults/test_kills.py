"""Database server and job service are killed at random moments of a job; the ranks continue."""

import random
import time

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.wire import JobState

from ....kill_moments import KILLS, SEED, check_went_on, struck
from ...cells import submit

NODES, STEPS = 2, 40
COUNTING = """
import os, time
with open({began!r}, "a") as file:
    file.write(os.environ["RANK"] + "\\n")
for step in range({steps}):
    print("step", step, time.time(), flush=True)
    time.sleep(0.1)
{steps}
"""


@pytest.fixture
def user(cluster_on_postgresql):
    opened = JobServiceClient(cluster_on_postgresql.url, "ada-token", retry_for_s=60)
    yield opened
    opened.close()


def ended(user, job):
    end = time.monotonic() + 120
    while not (seen := user.job(job)).state.terminal:
        assert time.monotonic() < end, seen
        time.sleep(0.1)
    return seen


def steps(user, job, rank):
    """Return the times of a rank's steps from its log; check that each is there once and in order."""
    lines = [line.split() for line in user.log(job, rank, 1 << 20)[0].splitlines()]
    assert [int(fields[1]) for fields in lines] == list(range(STEPS)), lines
    return [float(fields[2]) for fields in lines]


def run_once(user, folder, strike, moment_s):
    """Run a job and strike at a moment of its run; return its duration."""
    began, lived_from = folder / f"began-{time.monotonic_ns()}", time.monotonic()
    with struck(strike, moment_s) as away:
        job = submit(user, COUNTING.format(began=str(began), steps=STEPS), NODES, NODES)
        done = ended(user, job)
    check_whole(user, done, began)
    check_went_on([steps(user, job, rank) for rank in range(NODES)], away)
    return time.monotonic() - lived_from


def check_whole(user, done, began):
    """Check that nothing was lost or done twice."""
    assert (done.state, done.attempt) == (JobState.SUCCEEDED, 1), done
    assert done.result is not None
    assert sorted(began.read_text().split()) == [str(rank) for rank in range(NODES)]
    held = [slot for node in user.nodes().nodes for slot in node.slots if slot.job_id]
    assert not held, held


@pytest.mark.full("random moments; in the gate test_client kills the service once")
@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize("victim", ["database", "service"])
def test_killed_at_any_moment_loses_and_repeats_nothing(
    cluster_on_postgresql, postgres_server, user, tmp_path, victim
):
    cluster = cluster_on_postgresql
    strikes = {
        "database": (postgres_server.kill, postgres_server.start),
        "service": (cluster.kill, cluster.start),
    }
    kill, start = strikes[victim]
    chance = random.Random(SEED)

    def strike():
        kill()
        time.sleep(chance.uniform(0.2, 2))
        start()

    life_s = run_once(user, tmp_path, lambda: None, 0)
    for number in range(KILLS):
        moment_s = chance.uniform(0, life_s)
        print(f"seed {SEED}: kill {number + 1} of the {victim}, {moment_s:.2f} s after the submission")
        run_once(user, tmp_path, strike, moment_s)
    assert cluster.process.poll() is None, (cluster.folder / "service.log").read_text()
