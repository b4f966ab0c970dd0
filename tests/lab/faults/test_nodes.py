"""Machines are lost, come back, or are drained, while jobs run on them.

That a job goes on without a node that lost its power, froze, or lost its agent is in four/test_chaos; that
one is stopped whose node does not answer, in test_stop.
"""

from __future__ import annotations

import pytest

from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL, ROLE_LABEL

from ..cluster import LabCluster
from ..jobs import WITHIN_S, Jobs, counting
from ..machines import Node
from ..machines.processes import wait_for
from ..remains import on_node, wait_none
from .inject import cable_out, drained, off_the_jobs_network, out_of_the_swarm, power_lost, restart_engine
from .promises import check_all_steps, wait_back, wait_down, wait_goes_on_without, wait_queued

STEPS = 150
TWO_OR_THREE = {"min": 2, "max": 3}
FOREVER = "import time\nprint('step 0', flush=True)\nwhile True: time.sleep(0.1)\n"


@pytest.fixture
def node(ready: LabCluster) -> Node:
    """The node for faults: one without platform services."""
    return ready.lab.nodes[2]


def end(jobs: Jobs, job_id: int) -> None:
    jobs.stop(job_id)
    assert jobs.wait(job_id)["state"] == "stopped"


@pytest.mark.gate("one lost node")
@pytest.mark.alone("a node that is slow to answer would be taken for a lost one")
def test_a_node_that_is_cut_off_loses_its_tasks_and_comes_back_clean(
    jobs: Jobs, ready: LabCluster, node: Node
) -> None:
    job = jobs.submit(FOREVER, nodes=TWO_OR_THREE)
    jobs.wait_log(job, "step 0", rank=2)
    with cable_out(ready, node):
        wait_down(jobs, node)
        wait_goes_on_without(jobs, job, node)
    wait_back(jobs, node)
    wait_none(lambda: on_node(node), f"{node.name} has something left")
    end(jobs, job)
    assert jobs.wait(jobs.submit(counting(3), nodes=3))["state"] == "succeeded"


def test_doctor_examines_a_node_that_lost_its_power_and_is_back(
    jobs: Jobs, ready: LabCluster, node: Node
) -> None:
    """For some minutes, Docker's manager gets no logs from it."""
    with power_lost(ready, node):
        wait_down(jobs, node)
    wait_back(jobs, node)
    found = ready.doctor()
    assert [one for one in found if one["check"] == "probe"] == []
    assert node.name in {one["node"] for one in found if one["check"] == "interface"}


def test_what_an_engine_forgot_is_removed_after_its_start(ready: LabCluster, node: Node) -> None:
    """An engine that dies between two steps of a removal does it; here, a container that Swarm never knew."""
    labels = [f"--label={CLUSTER_LABEL}={CLUSTER}", f"--label={ROLE_LABEL}=task"]
    node.run(["docker", "run", "--name=forgotten", *labels, ready.images.hub, "--help"], check=False)
    assert on_node(node)
    node.restart_daemon()
    wait_none(lambda: on_node(node), f"{node.name} has something left", WITHIN_S)


def test_ranks_start_only_on_nodes_that_reach_each_other(jobs: Jobs, ready: LabCluster, node: Node) -> None:
    with off_the_jobs_network(ready, node):
        job = jobs.submit(FOREVER, nodes=TWO_OR_THREE)
        running = jobs.wait(job, "running")
        assert node.name not in running["nodes"] and len(running["nodes"]) == 2, jobs.history(job)
        assert f"{node.name} is not reached by the other nodes" in jobs.history(job)
        end(jobs, job)
        waiting = jobs.submit(counting(3), nodes=3)
        wait_for(lambda: node.name in jobs.why(waiting), "the reason to name the node", WITHIN_S, 0.5)
        assert jobs.job(waiting)["state"] == "starting", jobs.history(waiting)
    assert jobs.wait(waiting)["state"] == "succeeded", jobs.history(waiting)


def test_a_node_that_is_cut_off_while_a_job_starts_is_waited_for(
    jobs: Jobs, ready: LabCluster, node: Node
) -> None:
    job = jobs.submit(counting(10), nodes=3)
    with cable_out(ready, node):
        wait_queued(jobs, job)
        wait_down(jobs, node)
    done = jobs.wait(job)
    assert done["state"] == "succeeded", (done, jobs.history(job))


def test_a_drained_node_gives_its_tasks_up_and_takes_none(jobs: Jobs, ready: LabCluster, node: Node) -> None:
    job = jobs.submit(FOREVER, nodes=TWO_OR_THREE)
    jobs.wait_log(job, "step 0", rank=2)
    with drained(ready, node):
        wait_goes_on_without(jobs, job, node)
    end(jobs, job)


def test_a_node_that_leaves_the_swarm_is_forgotten_and_may_join_again(
    jobs: Jobs, ready: LabCluster, node: Node
) -> None:
    job = jobs.submit(FOREVER, nodes=3)
    jobs.wait_log(job, "step 0", rank=2)
    with out_of_the_swarm(ready, node):
        wait_queued(jobs, job)
        wait_down(jobs, node)
        ready.docker("node", "rm", node.name)
        wait_for(lambda: node.name not in jobs.nodes(), f"{node.name} to be forgotten", WITHIN_S, 0.5)
    again = jobs.wait(job, "running")
    # Swarm may show a node that left as ready for some seconds: then one more attempt is lost there.
    assert again["state"] == "running" and again["attempt"] in (2, 3), jobs.history(job)
    end(jobs, job)


def test_a_job_runs_once_again_when_the_managers_engine_restarts(jobs: Jobs, ready: LabCluster) -> None:
    """Hub, job service and proxy end with the engine, and so does the job's task there."""
    job = jobs.submit(counting(STEPS), nodes=3)
    jobs.wait_log(job, "step 5")
    restart_engine(ready, ready.first)
    done = jobs.wait(job)
    assert (done["state"], done["attempt"]) == ("succeeded", 2), (done, jobs.history(job))
    check_all_steps(jobs, job, ranks=3, steps=STEPS)
