"""Images that are not there, registries that are gone, and a disk that is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from docker.errors import APIError

from ..cluster import LabCluster
from ..machines import Node
from ..machines.processes import wait_for
from .jobs import NO_IMAGE, Jobs, counting, jobs, other_image, ready

__all__ = ["jobs", "other_image", "ready"]  # fixtures
pytestmark = pytest.mark.alone("how soon the product reacts")


def words(job: dict) -> str:
    return f"{job['reason']} {job['error']}"


def test_an_image_that_does_not_exist_fails_the_job_by_name(jobs: Jobs) -> None:
    done = jobs.wait(jobs.submit(counting(1), nodes=2, image=NO_IMAGE))
    assert done["state"] == "failed"
    assert NO_IMAGE in words(done) and "doctor" in words(done), done


@contextmanager
def without_registries(cluster: LabCluster) -> Iterator[None]:
    """Take away the cluster's registry and cache, and the outside that the cache fetches from."""
    names = ("minicluster_registry", "minicluster_cache")
    for name in names:
        cluster.docker("service", "scale", "--detach", f"{name}=0")
    cluster.lab.registry.stop()
    try:
        wait_for(lambda: not _running(cluster), "registry and cache to end", 60, 0.5)
        yield
    finally:
        cluster.lab.registry.start()
        for name in names:
            cluster.docker("service", "scale", "--detach", f"{name}=1")
        wait_for(lambda: len(_running(cluster)) == len(names), "registry and cache to be back", 60, 0.5)


def _running(cluster: LabCluster) -> list[str]:
    found = [
        cluster.docker("ps", "--quiet", "--filter", f"label=org.minicluster.role={role}")
        for role in ("registry", "cache")
    ]
    return [line for lines in found for line in lines]


def test_without_a_registry_a_node_says_which_image_it_lacks(
    jobs: Jobs, ready: LabCluster, other_image: str
) -> None:
    with without_registries(ready):
        done = jobs.wait(jobs.submit(counting(1), nodes=2, image=other_image))
        assert done["state"] == "failed"
        assert other_image in words(done) and "doctor" in words(done), done
        known = jobs.wait(jobs.submit(counting(3), nodes=3))
        assert known["state"] == "succeeded", known
    for node in ready.lab.nodes:
        wait_for(lambda node=node: offers(node, other_image), f"{node.name} to hear of the image", 60, 0.5)
    done = jobs.wait(jobs.submit(counting(3), nodes=3, image=other_image))
    assert done["state"] == "succeeded", done


def offers(node: Node, image: str) -> bool:
    """Whether a node's engine is told of an image by the cluster's cache."""
    with node.docker() as client:
        try:
            return bool(client.inspect_distribution(image))
        except APIError:
            return False
