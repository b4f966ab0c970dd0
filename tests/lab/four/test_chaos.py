"""One fault after the other on a cluster that trains: training continues, and nothing is left.

By default each fault strikes once, in an order of chance. By hand: MINICLUSTER_CHAOS_ROUNDS=20 for more, and
MINICLUSTER_SEED for the same order again. The table at the end says what each fault cost.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from ..faults.inject import SUDDEN_LOSSES, kill_agent, killed
from ..faults.promises import check_ran_once, check_resumed, wait_back
from ..jobs import TERMINAL, WITHIN_S, Jobs, counting
from ..machines import LabError, Node
from ..machines.processes import wait_for
from ..training import EVERY, steps, training

ROUNDS = int(os.environ.get("MINICLUSTER_CHAOS_ROUNDS", "1"))
SEED = int(os.environ.get("MINICLUSTER_SEED", str(random.randrange(1 << 30))))
PLATFORM = ("service", "hub", "proxy")
"""Faults of services that the attempt does not need; any other fault ends it."""
FAULTS = (*SUDDEN_LOSSES, "agent", *PLATFORM)
RANK_0 = {"power": True, "cable": False, "frozen": True, "agent": False}
"""Whether the first round strikes the node of rank 0 or another node; rounds alternate."""
SHORT_STEPS = 40
pytestmark = [
    pytest.mark.timeout(1500 + 300 * ROUNDS),
    pytest.mark.alone("how many steps are done again depends on how soon the product reacts"),
]


@dataclass
class Costs:
    """By fault: the pause between two steps in seconds, and the number of repeated steps."""

    pauses_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    steps_again: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def of_last(self, fault: str) -> str:
        return f"a pause of {self.pauses_s[fault][-1]:.2f} s, {self.steps_again[fault][-1]} steps again"

    def table(self) -> str:
        rows = [f"{'fault':14}{'times':>7}{'p50 s':>9}{'max s':>9}{'steps again':>13}{'most':>7}"]
        for fault, seconds in sorted(self.pauses_s.items()):
            again, middle = self.steps_again[fault], statistics.median(seconds)
            rows.append(
                f"{fault:14}{len(seconds):>7}{middle:>9.2f}{max(seconds):>9.2f}{sum(again):>13}{max(again):>7}"
            )
        return "\n  ".join(rows)


def test_whatever_fails_the_training_goes_on(jobs: Jobs, say: Callable[[str], None]) -> None:
    say(f"MINICLUSTER_SEED={SEED} MINICLUSTER_CHAOS_ROUNDS={ROUNDS}")
    chance, costs = random.Random(SEED), Costs()
    try:
        with training(jobs, timeout_s=None) as job:
            for number in range(ROUNDS):
                for fault in chance.sample(FAULTS, len(FAULTS)):
                    strike(jobs, job, fault, costs, rank_0=RANK_0.get(fault, False) ^ number % 2)
                    say(f"{fault}: {costs.of_last(fault)}")
                    check_a_short_job_beside(jobs)
    finally:
        say(costs.table())


def strike(jobs: Jobs, job: int, fault: str, costs: Costs, *, rank_0: bool) -> None:
    """Inject a fault; the training continues, in the same attempt if only the platform is affected."""
    attempt, nodes = wait_snapshot(jobs, job)
    struck_at = time.time()
    with struck(jobs, fault, nodes[0 if rank_0 else -1]):
        now = wait_step(jobs, job, attempt if fault in PLATFORM else attempt + 1)
    if fault in PLATFORM:
        assert now == attempt, jobs.history(job)
        pause_s, again = longest_pause(jobs, job, attempt, struck_at), 0
    else:
        pause_s, again = recovery(jobs, job, attempt, len(nodes), now)
    costs.pauses_s[fault].append(pause_s)
    costs.steps_again[fault].append(again)


@contextmanager
def struck(jobs: Jobs, fault: str, name: str) -> Iterator[None]:
    """Inject a named fault of a node or of the platform; afterwards, the struck component is back."""
    node = next(node for node in jobs.cluster.lab.nodes if node.name == name)
    if fault in PLATFORM:
        with killed(jobs.cluster, fault):
            yield
    elif fault == "agent":
        kill_agent(jobs.cluster, node)
        yield
    else:
        with lost(jobs, node, fault):
            yield


@contextmanager
def lost(jobs: Jobs, node: Node, fault: str) -> Iterator[None]:
    with SUDDEN_LOSSES[fault](jobs.cluster, node):
        yield
    wait_back(jobs, node)


def wait_snapshot(jobs: Jobs, job: int) -> tuple[int, list[str]]:
    """Wait until the training has a snapshot of this attempt; return the attempt and its nodes by rank."""
    found: list[dict] = []

    def has_one() -> bool:
        found[:] = [jobs.job(job)]
        (now,) = found
        return now["state"] == "running" and len(steps(jobs, job, now["attempt"])) > 2 * EVERY

    wait_of(jobs, job, has_one, "steps")
    return found[0]["attempt"], found[0]["nodes"]


def wait_step(jobs: Jobs, job: int, attempt: int) -> int:
    """Wait for another step of an attempt, or of a later one; return the attempt."""
    since, now = time.time(), attempt

    def has_gone_on() -> bool:
        nonlocal now
        now = jobs.job(job)["attempt"]
        return now >= attempt and any(at > since for at in steps(jobs, job, now).values())

    wait_of(jobs, job, has_gone_on, "the next step")
    return now


def wait_of(jobs: Jobs, job: int, is_so: Callable[[], bool], what: str) -> None:
    def check() -> bool:
        now = jobs.job(job)
        assert now["state"] not in TERMINAL, (now, jobs.history(job))
        return is_so()

    try:
        wait_for(check, f"{what} of job {job}", WITHIN_S, 0.2)
    except LabError as error:
        raise AssertionError(f"{error}: {jobs.history(job)}\n{jobs.why(job)}") from error


def longest_pause(jobs: Jobs, job: int, attempt: int, struck_at: float) -> float:
    """Return rank 0's longest pause between two steps since the fault."""
    wait_step(jobs, job, attempt)
    times = sorted(at for at in steps(jobs, job, attempt).values() if at > struck_at - 1)
    return max(later - earlier for earlier, later in pairwise(times))


def recovery(jobs: Jobs, job: int, attempt: int, ranks: int, now: int) -> tuple[float, int]:
    """Return the pause before the later attempt's first step, and the number of repeated steps."""
    after = steps(jobs, job, now)
    first = min(after)
    done = [one for rank in range(ranks) for one in steps(jobs, job, attempt, rank).items()]
    again = max(0, max(step for step, _ in done) + 1 - first)
    check_resumed(jobs, job, first, again)
    return after[first] - max(at for _, at in done), again


def check_a_short_job_beside(jobs: Jobs) -> None:
    """Check that a short job on any node runs once and completely."""
    job = jobs.submit(counting(SHORT_STEPS, 0.02), nodes=1)
    jobs.wait(job)
    check_ran_once(jobs, job, ranks=1, steps=SHORT_STEPS)
