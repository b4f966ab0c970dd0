"""A node whose disk is full: said in words, and nothing of it stays once there is room again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ..cluster import Images, LabCluster
from ..machines import Lab
from ..machines.processes import wait_for
from .jobs import Jobs, administrator, check_nothing_of_jobs_left, counted, counting, wait_idle

pytestmark = pytest.mark.apart("it makes machines of its own")

DISK_MB = 8000
READY_WITHIN_S = 120


@pytest.fixture
def small_disk(images: tuple[str, ...], say: Callable[[str], None]) -> Iterator[LabCluster]:
    """A cluster whose last machine has a small disk, which can be filled; the images are on it."""
    say("three machines, one with a small disk, and a cluster on them")
    with Lab.fresh(disk_mb=(None, None, DISK_MB), images=images) as lab:
        cluster = LabCluster(lab, Images(*(lab.load(image) for image in images)))
        cluster.up("--service-option=--MiniclusterHub.keep_warm_s=1")
        cluster.join()
        yield cluster


def test_a_full_disk_is_named_and_forgotten_once_there_is_room(small_disk: LabCluster) -> None:
    cluster, full = small_disk, small_disk.lab.nodes[2]
    with administrator(cluster) as jobs:
        wait_for(lambda: is_ready(jobs), "three nodes that have the image", READY_WITHIN_S, 0.5)
        wait_idle(jobs)
        check_nothing_of_jobs_left(cluster)  # A warm gang needs no room, and its end gives some back.
        full.fill_disk()
        failed = jobs.wait(jobs.submit(counting(3), nodes=3), "failed")
        assert failed["state"] == "failed", jobs.story(failed["id"])
        assert failed["error"]["node"] == full.name
        told = " ".join(failed["error"][part] for part in ("message", "traceback", "hint"))
        assert "disk is full" in told and "doctor" in told

        full.free_disk()
        check_nothing_of_jobs_left(cluster)
        done = jobs.submit(counting(3), nodes=3)
        assert jobs.wait(done, "succeeded")["state"] == "succeeded"
        assert counted(jobs.log(done, rank=2)) == [0, 1, 2]


def is_ready(jobs: Jobs) -> bool:
    """Whether a job over all three nodes has come through: only then each has what it needs."""
    if not jobs.is_idle():
        return False
    return jobs.wait(jobs.submit(counting(1), nodes=3), "succeeded", "failed")["state"] == "succeeded"
