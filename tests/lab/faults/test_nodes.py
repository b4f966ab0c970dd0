"""Machines leave, come back, are drained or restarted, while jobs run on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ..behind import wait_none
from ..cluster import LabCluster
from ..machines import Node
from ..machines.processes import wait_for
from .jobs import WITHIN_S, Jobs, counted, counting, jobs, on_node, other_image, ready, task_containers

__all__ = ["jobs", "other_image", "ready"]  # fixtures
pytestmark = pytest.mark.alone("how soon the product reacts")
STEPS = 150
TWO_OR_THREE = {"min": 2, "max": 3}
FOREVER = "import time\nprint('step 0', flush=True)\nwhile True: time.sleep(0.1)\n"


def is_up(jobs: Jobs, node: Node) -> bool:
    return bool(jobs.nodes()[node.name]["up"])


@contextmanager
def cut_off(node: Node) -> Iterator[None]:
    node.cut()
    try:
        yield
    finally:
        node.plug()


@contextmanager
def off_the_jobs_network(node: Node) -> Iterator[None]:
    """Lose what other machines send over the networks of jobs; the rest of the cable's traffic passes."""
    rule = ["INPUT", "-p", "udp", "--dport", "4789", "-j", "DROP"]
    node.run(["iptables", "--insert", *rule])
    try:
        yield
    finally:
        node.run(["iptables", "--delete", *rule])


def holders(jobs: Jobs, node: Node) -> set[int]:
    """Return the jobs that hold slots of a node."""
    return {slot["job_id"] for slot in jobs.nodes()[node.name]["slots"] if slot.get("job_id")}


def runs_again_without(jobs: Jobs, job_id: int, node: Node) -> None:
    """Wait for the second attempt, on the other nodes."""
    wait_for(lambda: jobs.job(job_id)["attempt"] == 2, "a second attempt", WITHIN_S, 0.5)
    again = jobs.wait(job_id, "running")
    assert again["state"] == "running" and node.name not in again["nodes"], (again, jobs.story(job_id))
    assert not holders(jobs, node)


def end(jobs: Jobs, job_id: int) -> None:
    jobs.stop(job_id)
    assert jobs.wait(job_id)["state"] == "stopped"


@pytest.mark.gate("one lost node")
def test_a_node_that_is_cut_off_loses_its_tasks_and_comes_back_clean(jobs: Jobs, ready: LabCluster) -> None:
    node = ready.lab.nodes[2]
    job = jobs.submit(FOREVER, nodes=TWO_OR_THREE)
    jobs.wait_log(job, "step 0", rank=2)
    with cut_off(node):
        wait_for(lambda: not is_up(jobs, node), f"{node.name} to be down", WITHIN_S, 0.5)
        runs_again_without(jobs, job, node)
    wait_for(lambda: is_up(jobs, node), f"{node.name} to be up", WITHIN_S, 0.5)
    wait_none(lambda: on_node(node), f"{node.name} has something left")
    end(jobs, job)
    assert jobs.wait(jobs.submit(counting(3), nodes=3))["state"] == "succeeded"


def test_ranks_start_only_on_nodes_that_reach_each_other(jobs: Jobs, ready: LabCluster) -> None:
    node = ready.lab.nodes[2]
    with off_the_jobs_network(node):
        job = jobs.submit(FOREVER, nodes=TWO_OR_THREE)
        running = jobs.wait(job, "running")
        assert node.name not in running["nodes"] and len(running["nodes"]) == 2, jobs.story(job)
        assert f"{node.name} is not reached by the other nodes" in jobs.story(job)
        end(jobs, job)
        waiting = jobs.submit(counting(3), nodes=3)
        wait_for(lambda: node.name in jobs.why(waiting), "the reason to name the node", WITHIN_S, 0.5)
        assert jobs.job(waiting)["state"] == "starting", jobs.story(waiting)
    assert jobs.wait(waiting)["state"] == "succeeded", jobs.story(waiting)


def test_a_job_is_stopped_while_its_node_is_away(jobs: Jobs, ready: LabCluster) -> None:
    node = ready.lab.nodes[1]
    job = jobs.submit(FOREVER, nodes=3)
    jobs.wait_log(job, "step 0")
    with cut_off(node):
        jobs.stop(job)
        assert jobs.wait(job)["state"] == "stopped"
        assert not holders(jobs, node)


def test_a_node_that_is_cut_off_while_a_job_starts_is_waited_for(jobs: Jobs, ready: LabCluster) -> None:
    node = ready.lab.nodes[2]
    job = jobs.submit(counting(10), nodes=3)
    with cut_off(node):
        assert jobs.wait(job, "queued")["state"] == "queued"
        wait_for(lambda: not is_up(jobs, node), f"{node.name} to be down", WITHIN_S, 0.5)
    done = jobs.wait(job)
    assert done["state"] == "succeeded", (done, jobs.story(job))


def test_a_frozen_node_is_taken_for_lost_and_goes_on_when_it_thaws(jobs: Jobs, ready: LabCluster) -> None:
    node = ready.lab.nodes[2]
    job = jobs.submit(FOREVER, nodes=3)
    jobs.wait_log(job, "step 0", rank=2)
    node.freeze()
    try:
        assert jobs.wait(job, "queued")["state"] == "queued"
    finally:
        node.thaw()
    again = jobs.wait(job, "running")
    assert (again["state"], again["attempt"]) == ("running", 2), jobs.story(job)
    end(jobs, job)


def test_a_drained_node_gives_its_tasks_up_and_takes_none(jobs: Jobs, ready: LabCluster) -> None:
    node = ready.lab.nodes[2]
    job = jobs.submit(FOREVER, nodes=TWO_OR_THREE)
    jobs.wait_log(job, "step 0", rank=2)
    ready.docker("node", "update", "--availability", "drain", node.name)
    try:
        runs_again_without(jobs, job, node)
    finally:
        ready.docker("node", "update", "--availability", "active", node.name)
    end(jobs, job)


def test_a_node_that_leaves_the_swarm_is_forgotten_and_may_join_again(jobs: Jobs, ready: LabCluster) -> None:
    node = ready.lab.nodes[2]
    job = jobs.submit(FOREVER, nodes=3)
    jobs.wait_log(job, "step 0", rank=2)
    ready.docker("swarm", "leave", node=node)
    try:
        assert jobs.wait(job, "queued")["state"] == "queued"
        wait_for(lambda: not is_up(jobs, node), f"{node.name} to be down", WITHIN_S, 0.5)
        ready.docker("node", "rm", node.name)
        wait_for(lambda: node.name not in jobs.nodes(), f"{node.name} to be forgotten", WITHIN_S, 0.5)
    finally:
        ready.lab.join(node, ready.join_command)
    again = jobs.wait(job, "running")
    # Swarm may take a node that left for a ready one some seconds longer: one more attempt is lost there.
    assert again["state"] == "running" and again["attempt"] in (2, 3), jobs.story(job)
    end(jobs, job)


def test_a_killed_agent_s_attempt_is_started_again(jobs: Jobs, ready: LabCluster) -> None:
    job = jobs.submit(FOREVER, nodes=3)
    jobs.wait_log(job, "step 0")
    (container,) = task_containers(ready, ready.lab.nodes[1])
    ready.docker("kill", container, node=ready.lab.nodes[1])
    wait_for(lambda: jobs.job(job)["attempt"] == 2, "a second attempt", WITHIN_S, 0.5)
    assert jobs.wait(job, "running")["state"] == "running", jobs.story(job)
    end(jobs, job)


def test_the_manager_s_daemon_restarts_while_a_job_runs(jobs: Jobs, ready: LabCluster) -> None:
    """Hub, service and proxy end with it; the job has a task there, so it is started once again."""
    everywhere = jobs.submit(counting(STEPS), nodes=3)
    jobs.wait_log(everywhere, "step 5")
    ready.first.restart_daemon()
    done = jobs.wait(everywhere)
    assert (done["state"], done["attempt"]) == ("succeeded", 2), jobs.story(everywhere)
    for rank in range(3):
        assert counted(jobs.log(everywhere, rank)) == list(range(STEPS))
