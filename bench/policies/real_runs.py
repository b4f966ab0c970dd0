"""Runs jobs of real.py by REST: alone, moved, and as a workload."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from real_jobs import DEVICE_S, EVERY, KINDS, Arrival, Kind

sys.path.append(str(Path(__file__).resolve().parents[2]))
from tests.lab.jobs import Jobs
from tests.lab.machines.processes import wait_for
from tests.lab.training import steps

NODES = 3
RANGE = {"min": 1, "max": NODES}
WITHIN_S = 900
IDLE = "import time\nwhile True: time.sleep(1)\n"


@dataclass(frozen=True)
class Result:
    """A workload's makespan, average completion time, and restarts per job."""

    makespan_s: float
    turnaround_s: float
    moves: float


def activate(jobs: Jobs, policy: str, placement: str) -> None:
    choice = {"policy": policy, "placement": placement}
    jobs.http.put("api/policy", json=choice).raise_for_status()


def until_idle(jobs: Jobs) -> None:
    """Wait until no job or warm gang holds a slot."""

    def idle() -> bool:
        nodes = jobs.nodes().values()
        held = [slot for node in nodes for slot in node["slots"] if slot.get("job_id") or slot.get("warm")]
        return len(nodes) == NODES and not held

    wait_for(idle, "all slots to be free", WITHIN_S, 0.2)


def succeeded(jobs: Jobs, job_id: int) -> dict[str, Any]:
    """Wait until a job succeeds; return it."""
    job = jobs.wait(job_id, within_s=WITHIN_S)
    if job["state"] != "succeeded":
        raise SystemExit(f"{job}\n{jobs.history(job_id)}\n{jobs.log(job_id)[-2000:]}")
    return job


def lone_s(jobs: Jobs, kind: Kind, nodes: int) -> float:
    """Return a training's run time on so many nodes, measured in a queue from the end of the previous job.

    Queued jobs of the same owner take over each other's gangs, so they start sooner than a single job.
    An idle job holds the other nodes.
    """
    until_idle(jobs)
    others = [jobs.submit(IDLE, NODES - nodes)] if nodes < NODES else []
    for other in others:
        jobs.wait(other, "running")
    before, job = (jobs.submit(kind.source(), nodes) for _ in range(2))
    took_s = -succeeded(jobs, before)["ended_at"] + succeeded(jobs, job)["ended_at"]
    for other in others:
        jobs.stop(other)
    return took_s


def moves_s(jobs: Jobs, rounds: int) -> list[float]:
    """Return the seconds that each move costs, for `rounds` times shrinking for another job and growing back.

    It is the time from the last step that counts to the next one, less a step: it includes the other job's
    start, its own restart, and repeated steps.
    """
    until_idle(jobs)
    long = jobs.submit(KINDS[-1].source(times=1 + 2 * rounds), RANGE)
    for number in range(rounds):
        wait_for(lambda number=number: _under_way(jobs, long, 1 + 2 * number), "its steps", WITHIN_S, 0.2)
        succeeded(jobs, jobs.submit(KINDS[0].source(), 1))
    return list(_pauses_s(jobs, long, succeeded(jobs, long)["attempt"]))


def _under_way(jobs: Jobs, job_id: int, attempt: int) -> bool:
    return jobs.job(job_id)["attempt"] >= attempt and len(steps(jobs, job_id, attempt)) > 3 * EVERY


def _pauses_s(jobs: Jobs, job_id: int, attempts: int) -> Iterator[float]:
    for attempt in range(1, attempts):
        before, after = steps(jobs, job_id, attempt), steps(jobs, job_id, attempt + 1)
        first = min(after, default=0)
        if first - 1 in before:
            yield after[first] - before[first - 1] - DEVICE_S


def run(jobs: Jobs, arrivals: Sequence[Arrival]) -> Result:
    """Submit each job of a workload at its time; return the result."""
    until_idle(jobs)
    began = time.monotonic()
    submitted = []
    for arrival in arrivals:
        time.sleep(max(0.0, began + arrival.at_s - time.monotonic()))
        submitted.append(jobs.submit(arrival.kind.source(), RANGE))
    done = [succeeded(jobs, job_id) for job_id in submitted]
    makespan_s = max(job["ended_at"] for job in done) - min(job["created_at"] for job in done)
    turnaround_s = fmean(job["ended_at"] - job["created_at"] for job in done)
    return Result(makespan_s, turnaround_s, fmean(job["attempt"] - 1 for job in done))
