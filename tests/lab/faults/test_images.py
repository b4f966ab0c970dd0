"""Missing images, and registries that are away."""

from __future__ import annotations

from docker.errors import APIError

from ..cluster import LabCluster
from ..jobs import NO_IMAGE, Jobs, counting
from ..machines import Node
from ..machines.processes import wait_for
from .inject import without_registries


def reason_and_error(job: dict) -> str:
    return f"{job['reason']} {job['error']}"


def test_an_image_that_does_not_exist_fails_the_job_by_name(jobs: Jobs) -> None:
    done = jobs.wait(jobs.submit(counting(1), nodes=2, image=NO_IMAGE))
    assert done["state"] == "failed"
    assert NO_IMAGE in reason_and_error(done) and "doctor" in reason_and_error(done), done


def test_without_a_registry_a_node_says_which_image_it_lacks(
    jobs: Jobs, ready: LabCluster, other_image: str
) -> None:
    with without_registries(ready):
        done = jobs.wait(jobs.submit(counting(1), nodes=2, image=other_image))
        assert done["state"] == "failed"
        assert other_image in reason_and_error(done) and "doctor" in reason_and_error(done), done
        known = jobs.wait(jobs.submit(counting(3), nodes=3))
        assert known["state"] == "succeeded", known
    for node in ready.lab.nodes:
        wait_for(lambda node=node: offers(node, other_image), f"{node.name} to hear of the image", 60, 0.5)
    done = jobs.wait(jobs.submit(counting(3), nodes=3, image=other_image))
    assert done["state"] == "succeeded", done


def offers(node: Node, image: str) -> bool:
    """Whether the cluster's cache offers an image to a node's engine."""
    with node.docker() as client:
        try:
            return bool(client.inspect_distribution(image))
        except APIError:
            return False
