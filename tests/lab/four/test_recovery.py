"""A node of a job that cannot shrink, or of a fault-tolerant job, is lost: power, cable, frozen.

That a job which can shrink goes on from its newest snapshot is in test_chaos.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest

from ..faults.inject import SUDDEN_LOSSES, power_lost
from ..faults.promises import wait_queued
from ..jobs import WITHIN_S, Jobs, wait_idle
from ..machines.processes import wait_for
from ..training import EVERY, steps, training
from .conftest import KEEP_WARM_S

pytestmark = pytest.mark.alone("how many steps the survivors lose depends on how soon the product reacts")

TIMES = int(os.environ.get("MINICLUSTER_RECOVERIES", "1"))
"""How often each node is struck by each fault; with 1, each node gets only some of the faults."""
ALL = [(fault, rank_0) for rank_0 in (True, False) for fault in SUDDEN_LOSSES]


def test_a_job_that_needs_all_its_nodes_waits_for_one_in_the_lost_ones_place(jobs: Jobs) -> None:
    with training(jobs, nodes=3) as job:
        lost = next(node for node in jobs.cluster.lab.nodes if node.name == jobs.job(job)["nodes"][0])
        with power_lost(jobs.cluster, lost):
            wait_queued(jobs, job)
            assert "2" in jobs.job(job)["reason"]
            time.sleep(KEEP_WARM_S + 1)  # While it waits, the other nodes stay reserved for it.
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


@dataclass(frozen=True)
class LiveRecovery:
    """A fault-tolerant job that lost a node: the survivors' pause and lost steps, and the later join.

    back_pause_s: the survivors' longest pause after the node is back, when a rank there may briefly rejoin.
    """

    fault: str
    node: str
    rank_0: bool
    pause_s: float
    back_pause_s: float
    lost_steps: int
    joined_s: float

    def __str__(self) -> str:
        whose = "rank 0" if self.rank_0 else "another rank"
        return (
            f"{self.fault:6} {self.node} ({whose}), fault-tolerant: survivors went on after "
            f"{self.pause_s:.2f} s, {self.lost_steps} steps lost; a new rank joined {self.joined_s:.1f} s "
            f"after the node was back, with a pause of {self.back_pause_s:.2f} s"
        )


def recover_live(jobs: Jobs, fault: str, *, rank_0: bool) -> LiveRecovery:
    """Strike a node of a fault-tolerant job and bring it back; the other ranks never restart."""
    with training(jobs, fault_tolerant=True) as job:
        nodes = jobs.job(job)["nodes"]
        lost_rank = 0 if rank_0 else len(nodes) - 1
        witness = 1
        victim = next(node for node in jobs.cluster.lab.nodes if node.name == nodes[lost_rank])
        struck_at = time.time()
        with SUDDEN_LOSSES[fault](jobs.cluster, victim):
            wait_for(lambda: _after(jobs, job, witness, struck_at + 2), "survivors' steps", WITHIN_S, 0.2)
            wait_for(lambda: victim.name not in jobs.job(job)["nodes"], "the loss to be seen", WITHIN_S, 0.2)
            back_at = time.time()
        wait_for(lambda: steps(jobs, job, rank=len(nodes)), "the new rank's steps", WITHIN_S, 0.2)
        seen, joined = steps(jobs, job, rank=witness), steps(jobs, job, rank=len(nodes))
        assert jobs.job(job)["attempt"] == 1, jobs.history(job)
    assert min(joined) > min(seen), "it began anew instead of taking a peer's state"
    return LiveRecovery(
        fault,
        victim.name,
        rank_0,
        _longest_pause(seen, struck_at, back_at),
        _longest_pause(seen, back_at),
        _skipped(seen),
        min(joined.values()) - back_at,
    )


def _after(jobs: Jobs, job: int, rank: int, moment: float) -> bool:
    return any(at > moment for at in steps(jobs, job, rank=rank).values())


def _longest_pause(seen: dict[int, float], since: float, until: float = math.inf) -> float:
    """Return the longest pause before a step that was done between two times."""
    times = sorted(at for at in seen.values() if at > since - 1)
    return max(later - earlier for earlier, later in pairwise(times) if since < later < until)


def _skipped(seen: dict[int, float]) -> int:
    """Return the number of steps that a rank missed between its first and its last one."""
    return max(seen) - min(seen) + 1 - len(seen)
