"""A node dies under a training job: by power, by cable, frozen; that of rank 0 and others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from ..faults.jobs import WITHIN_S, Jobs, wait_idle
from ..faults.recovering import EVERY, FAULTS, recover, recover_live, steps, training
from ..machines.processes import wait_for
from .conftest import KEEP_WARM_S

pytestmark = [
    pytest.mark.alone("how soon the product reacts"),
    pytest.mark.apart("it makes machines of its own"),
]

TIMES = int(os.environ.get("MINICLUSTER_RECOVERIES", "1"))
"""How often each node is struck in each way; with one time only, not in all of them."""
ALL = [(fault, rank_0) for rank_0 in (True, False) for fault in FAULTS]


@pytest.mark.parametrize(("fault", "rank_0"), ALL if TIMES > 1 else ALL[::2])
def test_a_job_goes_on_from_its_newest_snapshot(
    jobs: Jobs, say: Callable[[str], None], fault: str, rank_0: bool
) -> None:
    for _ in range(TIMES):
        recovery = recover(jobs, fault, rank_0=rank_0)
        say(str(recovery))
        assert recovery.lost_steps <= 2 * EVERY
        wait_idle(jobs)


def test_a_job_that_needs_all_its_nodes_waits_for_one_in_the_lost_ones_place(jobs: Jobs) -> None:
    with training(jobs, nodes=3) as job:
        lost = next(node for node in jobs.cluster.lab.nodes if node.name == jobs.job(job)["nodes"][0])
        lost.kill()
        try:
            assert jobs.wait(job, "queued")["state"] == "queued"
            assert "2" in jobs.job(job)["reason"]
            time.sleep(KEEP_WARM_S + 1)  # As long as it waits, the others stay there for it.
        finally:
            lost.power_on()
        wait_for(lambda: steps(jobs, job, 2) or jobs.job(job)["error"], "its next step", WITHIN_S, 0.2)
        assert not jobs.job(job)["error"], (jobs.job(job), jobs.log(job, rank=2))
        assert min(steps(jobs, job, 2)) > EVERY, "the others kept its snapshots"
        assert len(jobs.job(job)["nodes"]) == 3


@pytest.mark.parametrize(("fault", "rank_0"), ALL if TIMES > 1 else ALL[::3])
def test_the_ranks_of_a_fault_tolerant_job_go_on_and_a_new_one_joins(
    jobs: Jobs, say: Callable[[str], None], fault: str, rank_0: bool
) -> None:
    for _ in range(TIMES):
        recovery = recover_live(jobs, fault, rank_0=rank_0)
        say(str(recovery))
        assert recovery.lost_steps <= 1
        wait_idle(jobs)
