"""A training job that loses a node: how long until its next step, and how many steps were done twice."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from ..machines import Node
from ..machines.processes import wait_for
from .jobs import WITHIN_S, Jobs

STEPS = 100_000
EVERY = 5
"""Steps between two snapshots."""
TRAINING = f"""
import time, torch, minicluster as mc
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(8192, 64), torch.randint(10, (8192,)))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = mc.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True))
step = mc.resume(model, optimizer, loader)
print("resumed", step, flush=True)
while step < {STEPS}:
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        mc.checkpoint(model, optimizer, loader, step=step, every={EVERY})
        print("step", step, time.time(), flush=True)
        time.sleep(0.05)
"""


@dataclass(frozen=True)
class Recovery:
    """`seconds`: from the fault to the next step that was done; `lost_steps`: how many were done again."""

    fault: str
    node: str
    rank_0: bool
    seconds: float
    lost_steps: int

    def __str__(self) -> str:
        whose = "rank 0" if self.rank_0 else "another rank"
        return f"{self.fault:6} {self.node} ({whose}): {self.seconds:.2f} s, {self.lost_steps} steps again"


FAULTS: dict[str, tuple[Callable[[Node], None], Callable[[Node], None]]] = {
    "power": (Node.kill, Node.power_on),
    "cable": (Node.cut, Node.plug),
    "frozen": (Node.freeze, Node.thaw),
}
"""What befalls a node, and how it is undone."""


@contextmanager
def training(jobs: Jobs, **spec: object) -> Iterator[int]:
    """Run the training on nodes that are not the platform's, which one job keeps busy meanwhile."""
    blocker = jobs.submit("import time\nwhile True: time.sleep(1)\n", slots_per_node=2)
    assert jobs.wait(blocker, "running")["nodes"] == [jobs.cluster.first.name]
    job = jobs.submit(TRAINING, **{"nodes": {"min": 2, "max": 3}, **spec})  # type: ignore[arg-type]
    try:
        wait_for(lambda: len(steps(jobs, job)) > 2 * EVERY, f"steps of job {job}", WITHIN_S, 0.2)
        yield job
    finally:
        for one in (job, blocker):
            jobs.stop(one)
        for one in (job, blocker):
            jobs.wait(one)


def steps(jobs: Jobs, job: int, attempt: int = 1, rank: int = 0) -> dict[int, float]:
    """Return when each step of an attempt was done, as one of its ranks said."""
    lines = [line.split() for line in jobs.log(job, rank, attempt).splitlines()]
    return {int(words[1]): float(words[2]) for words in lines if words[:1] == ["step"] and len(words) == 3}


def recover(jobs: Jobs, fault: str, *, rank_0: bool) -> Recovery:
    """Have a node of a running job struck, and return how it came back; the node is as before then."""
    strike, undo = FAULTS[fault]
    with training(jobs) as job:
        nodes = jobs.job(job)["nodes"]
        victim = next(node for node in jobs.cluster.lab.nodes if node.name == nodes[0 if rank_0 else -1])
        struck_at = time.time()
        strike(victim)
        try:
            wait_for(lambda: steps(jobs, job, 2), f"the next step of job {job}", WITHIN_S, 0.1)
            before, after = steps(jobs, job), steps(jobs, job, 2)
            goes_on = jobs.job(job)["nodes"]
            assert victim.name not in goes_on and len(goes_on) == 2, (goes_on, jobs.story(job))
        finally:
            undo(victim)
    first = min(after)
    assert first > EVERY, f"it began anew instead of going on: {jobs.log(job)[:2000]}"
    return Recovery(fault, victim.name, rank_0, after[first] - struck_at, max(before) + 1 - first)


@dataclass(frozen=True)
class LiveRecovery:
    """A fault-tolerant job that lost a node: the survivors' pause and lost steps, and the join after it.

    back_pause_s: their longest pause once the node is back, and a rank on it may ask to go on for a moment.
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
    """Have a node of a fault-tolerant job struck and brought back; the others never start again."""
    strike, undo = FAULTS[fault]
    with training(jobs, fault_tolerant=True) as job:
        nodes = jobs.job(job)["nodes"]
        lost_rank = 0 if rank_0 else len(nodes) - 1
        witness = 1
        victim = next(node for node in jobs.cluster.lab.nodes if node.name == nodes[lost_rank])
        struck_at = time.time()
        strike(victim)
        try:
            wait_for(lambda: _after(jobs, job, witness, struck_at + 2), "survivors' steps", WITHIN_S, 0.2)
            wait_for(lambda: victim.name not in jobs.job(job)["nodes"], "the loss to be seen", WITHIN_S, 0.2)
        finally:
            back_at = time.time()
            undo(victim)
        wait_for(lambda: steps(jobs, job, rank=len(nodes)), "the new rank's steps", WITHIN_S, 0.2)
        seen, joined = steps(jobs, job, rank=witness), steps(jobs, job, rank=len(nodes))
        assert jobs.job(job)["attempt"] == 1, jobs.story(job)
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
    """Return the longest pause between two steps of which the second is between two moments."""
    times = sorted(at for at in seen.values() if at > since - 1)
    return max(later - earlier for earlier, later in pairwise(times) if since < later < until)


def _skipped(seen: dict[int, float]) -> int:
    """Return how many steps between a rank's first and last one it did not take."""
    return max(seen) - min(seen) + 1 - len(seen)
