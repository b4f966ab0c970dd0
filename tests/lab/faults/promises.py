"""Checks of what a cluster guarantees under faults; `remains` checks that nothing of jobs is left.

| promise | check |
| --- | --- |
| a job is started once, and no line is lost or repeated | `check_ran_once`, `TasksMade` |
| ranks continue while the control plane is away | `check_went_on` of tests/kill_moments.py |
| after a loss the log has all lines of the newest attempt | `check_all_steps` |
| a job that can use fewer nodes continues without a lost one; its slots are freed | `wait_goes_on_without` |
| a job that needs the lost node waits for it | `wait_queued` |
| a job resumes from its newest snapshot | `check_resumed` |
| a node is back, without remains of jobs | `wait_back`, `remains.on_node` |
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from ..cluster import LabCluster
from ..jobs import WITHIN_S, Jobs, counted
from ..machines import Node
from ..machines.processes import wait_for
from ..training import EVERY

MOST_STEPS_AGAIN = 2 * EVERY


def check_ran_once(jobs: Jobs, job_id: int, ranks: int, steps: int) -> None:
    """Check that the job succeeded in its first attempt, and that each rank's log has each line once."""
    done = jobs.job(job_id)
    assert (done["state"], done["attempt"]) == ("succeeded", 1), (done, jobs.history(job_id))
    check_all_steps(jobs, job_id, ranks, steps)


def check_all_steps(jobs: Jobs, job_id: int, ranks: int, steps: int) -> None:
    """Check that the newest attempt's log has each step of each rank once and in order."""
    for rank in range(ranks):
        log = jobs.log(job_id, rank)
        assert counted(log) == list(range(steps)), log


@dataclass(frozen=True)
class TasksMade:
    """The services of tasks that the Swarm created since a moment.

    An engine stores only its last 256 events, as many as a few jobs cause, so check after each job.
    """

    cluster: LabCluster
    since: float

    @classmethod
    def from_now(cls, cluster: LabCluster) -> TasksMade:
        return cls(cluster, time.time())

    def check_each_once(self, at_least: int) -> None:
        listed = self.cluster.docker(
            "events",
            f"--since={self.since:.3f}",
            f"--until={time.time():.3f}",
            "--filter=type=service",
            "--filter=event=create",
            "--format={{.Actor.Attributes.name}}",
        )
        made = Counter(name for name in listed if name.startswith("minicluster-task-"))
        assert len(made) >= at_least and set(made.values()) == {1}, made


def wait_goes_on_without(jobs: Jobs, job_id: int, node: Node) -> None:
    """Wait for the second attempt on the other nodes; check that the lost node's slots are free."""
    wait_for(lambda: jobs.job(job_id)["attempt"] == 2, "a second attempt", WITHIN_S, 0.5)
    again = jobs.wait(job_id, "running")
    assert again["state"] == "running" and node.name not in again["nodes"], (again, jobs.history(job_id))
    assert node.name not in {name for name, _ in held_slots(jobs)}


def wait_queued(jobs: Jobs, job_id: int) -> None:
    """Wait until the job is queued again."""
    assert jobs.wait(job_id, "queued")["state"] == "queued", jobs.history(job_id)


def check_resumed(jobs: Jobs, job_id: int, first_step: int, steps_again: int) -> None:
    """Check that an attempt resumed from the newest snapshot, and repeated at most two snapshot intervals."""
    assert first_step > EVERY, f"it began anew: {jobs.history(job_id)}"
    assert steps_again <= MOST_STEPS_AGAIN, jobs.history(job_id)


def wait_down(jobs: Jobs, node: Node) -> None:
    wait_for(lambda: not jobs.nodes()[node.name]["up"], f"{node.name} to be down", WITHIN_S, 0.5)


def wait_back(jobs: Jobs, node: Node) -> None:
    wait_for(lambda: jobs.nodes()[node.name]["up"], f"{node.name} to be up", WITHIN_S, 0.5)


def held_slots(jobs: Jobs) -> set[tuple[str, int]]:
    """Return the node and the job of each held slot."""
    return {
        (name, slot["job_id"])
        for name, node in jobs.nodes().items()
        for slot in node["slots"]
        if slot.get("job_id")
    }
