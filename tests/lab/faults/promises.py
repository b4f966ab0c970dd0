"""What a cluster promises under faults, by name; that nothing is left of jobs is in `remains`.

| promise | check |
| --- | --- |
| a job is started once, and none of its lines is lost or doubled | `check_ran_once`, `TasksMade` |
| ranks go on while the control plane is away | `check_went_on` of tests/kill_moments.py |
| after a loss all lines of the newest attempt are there | `check_all_steps` |
| a job that needs fewer nodes goes on without the lost one, whose slots are free | `wait_goes_on_without` |
| a job that needs the lost node waits for it | `wait_queued` |
| a job goes on from its newest snapshot | `check_resumed` |
| a node is back, with nothing of the jobs on it | `wait_back`, `remains.on_node` |
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
    """The job ended well in its first attempt, and each rank's log has each line once."""
    done = jobs.job(job_id)
    assert (done["state"], done["attempt"]) == ("succeeded", 1), (done, jobs.history(job_id))
    check_all_steps(jobs, job_id, ranks, steps)


def check_all_steps(jobs: Jobs, job_id: int, ranks: int, steps: int) -> None:
    """The newest attempt's log has each step of each rank once, and in its order."""
    for rank in range(ranks):
        log = jobs.log(job_id, rank)
        assert counted(log) == list(range(steps)), log


@dataclass(frozen=True)
class TasksMade:
    """Which services of tasks the Swarm was asked to make since a moment.

    An engine keeps its last 256 events only, which a few jobs make: check after each job.
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
    """Wait for the second attempt, on the other nodes; the lost one's slots are free."""
    wait_for(lambda: jobs.job(job_id)["attempt"] == 2, "a second attempt", WITHIN_S, 0.5)
    again = jobs.wait(job_id, "running")
    assert again["state"] == "running" and node.name not in again["nodes"], (again, jobs.history(job_id))
    assert node.name not in {name for name, _ in held_slots(jobs)}


def wait_queued(jobs: Jobs, job_id: int) -> None:
    """Wait until the job is queued again."""
    assert jobs.wait(job_id, "queued")["state"] == "queued", jobs.history(job_id)


def check_resumed(jobs: Jobs, job_id: int, first_step: int, steps_again: int) -> None:
    """An attempt went on from the newest snapshot; at most two intervals of snapshots were done again."""
    assert first_step > EVERY, f"it began anew: {jobs.history(job_id)}"
    assert steps_again <= MOST_STEPS_AGAIN, jobs.history(job_id)


def wait_down(jobs: Jobs, node: Node) -> None:
    wait_for(lambda: not jobs.nodes()[node.name]["up"], f"{node.name} to be down", WITHIN_S, 0.5)


def wait_back(jobs: Jobs, node: Node) -> None:
    wait_for(lambda: jobs.nodes()[node.name]["up"], f"{node.name} to be up", WITHIN_S, 0.5)


def held_slots(jobs: Jobs) -> set[tuple[str, int]]:
    """Return which jobs hold slots of which nodes."""
    return {
        (name, slot["job_id"])
        for name, node in jobs.nodes().items()
        for slot in node["slots"]
        if slot.get("job_id")
    }
