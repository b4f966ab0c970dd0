"""A job and a notebook server that fill their node's disk are ended with a message; others continue.

The last test has a disk that is full for another reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from minicluster_hub.launch.errors import VisitFailed

from ... import messages
from ..cluster import Images, LabCluster, Person
from ..jobs import Jobs, administrator, counted, counting
from ..machines import Lab, Node
from ..machines.processes import wait_for
from ..people import People, text
from ..remains import check_nothing_of_jobs_left
from .test_hogs import works_beside

pytestmark = pytest.mark.apart("it makes machines of its own")

DISK_MB = 12_000
RESERVE, LEFT = 10**9, 25 * 10**8
WITHIN_S = 240
FILLS = """
import os, time
def fill(path):
    with open(os.path.expanduser(path), "wb") as file:
        while True:
            file.write(b"x" * (4 << 20))
            file.flush()
            time.sleep(0.1)
"""
JOB = f"""{FILLS}
disk = os.statvfs("/")
if disk.f_blocks * disk.f_frsize < {2 * DISK_MB << 20}:
    fill("/tmp/all")
while True:
    time.sleep(0.5)
"""

UNSEEN = f"""
import ctypes, os, time
disk, size = os.statvfs("/"), 64 << 20
file = os.open("/tmp/unseen", os.O_CREAT | os.O_RDWR)
KEEP_SIZE, taken = 1, 0
while disk.f_blocks * disk.f_frsize < {2 * DISK_MB << 20}:
    if ctypes.CDLL(None).fallocate(file, KEEP_SIZE, ctypes.c_long(taken), ctypes.c_long(size)) == 0:
        taken += size
    else:
        size = max(4096, size // 2)
while True:
    time.sleep(0.5)
"""

MANY_FILES = f"""
import os, time
disk, made = os.statvfs("/"), 0
while disk.f_blocks * disk.f_frsize < {2 * DISK_MB << 20}:
    if made % 10_000 == 0:
        os.mkdir(f"/tmp/{{made}}")
        os.chdir(f"/tmp/{{made}}")
    os.close(os.open(str(made), os.O_CREAT))
    made += 1
    if made % 1000 == 0 and os.statvfs("/").f_favail < disk.f_files // 10:
        time.sleep(1)  # a disk of the usual size has some time left from here on
while True:
    time.sleep(0.5)
"""


@pytest.fixture(scope="module")
def small_disk(images: tuple[str, ...], say: Callable[[str], None]) -> Iterator[LabCluster]:
    """A cluster whose last machine has a small disk that is nearly full."""
    say("three machines, one with a small disk, and a cluster on them")
    with Lab.fresh(gpus=2, disk_mb=(None, None, DISK_MB), images=images) as lab:
        cluster = LabCluster(lab, Images(*(lab.load(image) for image in images)))
        cluster.up("--service-option=--MiniclusterHub.keep_warm_s=1", f"--disk-reserve={RESERVE}")
        cluster.join()
        with administrator(cluster) as jobs:
            wait_for(lambda: is_ready(jobs), "three nodes that have the image", WITHIN_S, 0.5)
        lab.nodes[2].fill_disk(LEFT)
        yield cluster


@pytest.fixture
def jobs(small_disk: LabCluster) -> Iterator[Jobs]:
    with administrator(small_disk) as found:
        yield found
        found.stop_all()
        check_nothing_of_jobs_left(small_disk)


def is_ready(jobs: Jobs) -> bool:
    """Whether a job over all three nodes succeeded: only then each of them has the image."""
    if not jobs.is_idle():
        return False
    return jobs.wait(jobs.submit(counting(1), nodes=3), "succeeded", "failed")["state"] == "succeeded"


def node(cluster: LabCluster) -> Node:
    return cluster.lab.nodes[2]


def ended(cluster: LabCluster) -> list[str]:
    """Return the guards' log line for each container that a node's eviction guard ended."""
    result = cluster.first.run(["docker", "service", "logs", "--raw", "minicluster_eviction"])
    lines = (result.stdout + result.stderr).splitlines()
    return [line for line in lines if line.startswith("ending ")]


def test_a_job_that_fills_the_disk_is_ended_for_it_and_others_are_not(
    jobs: Jobs, small_disk: LabCluster
) -> None:
    beside = jobs.submit(counting(300, 0.2), nodes=3)
    jobs.wait_log(beside, "step 1", rank=2)
    failed = jobs.wait(jobs.submit(JOB, nodes=3), "failed")
    error, full = failed["error"], node(small_disk)
    assert (failed["state"], error["kind"], error["node"]) == ("failed", "disk", full.name), failed
    assert "nearly full" in error["message"] and "It wrote 1." in error["message"], error
    assert full.disk.free_bytes > RESERVE // 2
    wait_for(lambda: full.disk.free_bytes > RESERVE, "room to come back", WITHIN_S, 0.5)
    works_beside(small_disk, jobs)
    assert jobs.wait(beside, "succeeded")["state"] == "succeeded"
    (line,) = ended(small_disk)
    assert line.startswith("ending minicluster-task-"), line


def test_a_job_that_takes_a_disk_unseen_is_ended_before_the_node_has_nothing_left(
    jobs: Jobs, small_disk: LabCluster
) -> None:
    """It uses `fallocate` beyond the end of a file: neither the file's size nor written bytes show it."""
    before, full = ended(small_disk), node(small_disk)
    failed = jobs.wait(jobs.submit(UNSEEN, nodes=3), "failed")
    assert (failed["error"]["kind"], failed["error"]["node"]) == ("disk", full.name), failed
    wait_for(lambda: full.disk.free_bytes > RESERVE, "room to come back", WITHIN_S, 0.5)
    (line,) = ended(small_disk)[len(before) :]
    assert messages.WENT_UNSEEN in line, line
    works_beside(small_disk, jobs)


def test_a_job_that_makes_files_until_the_disk_takes_no_more_is_ended_for_it(
    jobs: Jobs, small_disk: LabCluster
) -> None:
    """The files are empty, so bytes do not show it, and the kernel does not count inodes per container."""
    before, full = ended(small_disk), node(small_disk)
    before_inodes = full.disk.free_inodes
    job, left = jobs.submit(MANY_FILES, nodes=3), [before_inodes]

    def is_ended() -> bool:
        left.append(full.disk.free_inodes)
        return len(ended(small_disk)) > len(before)

    wait_for(is_ended, "the job to be ended", WITHIN_S, 1)
    assert min(left) > 0, "nobody else could make a file any more"
    failed = jobs.wait(job, "failed")
    assert (failed["error"]["kind"], failed["error"]["node"]) == ("disk", full.name), failed
    assert "inodes" in failed["error"]["message"], failed["error"]
    (line,) = ended(small_disk)[len(before) :]
    assert line.startswith("ending minicluster-task-") and "inodes" in line, line
    wait_for(lambda: full.disk.free_inodes > before_inodes // 2, "inodes to come back", WITHIN_S, 0.5)
    works_beside(small_disk, jobs)
    assert len(ended(small_disk)) == len(before) + 1


async def test_a_server_that_fills_its_home_is_ended_its_owner_is_told_and_others_go_on(
    jobs: Jobs, small_disk: LabCluster
) -> None:
    people, full, before = People(small_disk), node(small_disk), ended(small_disk)
    async with people.at_work("grace", node=full.name) as grace, people.logged_in("ada") as ada:
        await ada.start_server(node=full.name)
        with suppress(VisitFailed):  # The server's session can no longer be closed.
            async with ada.kernel() as kernel:
                filling = asyncio.create_task(kernel.run(f"{FILLS}\nfill('~/all')"))
                while messages.FILLED_MOST_OF_IT not in await spawn_page(ada):
                    await asyncio.sleep(1)
                filling.cancel()
                await asyncio.gather(filling, return_exceptions=True)
        async with grace.kernel() as other:
            assert text(await other.run("print(6 * 7)")).strip() == "42"
    (line,) = ended(small_disk)[len(before) :]
    assert line.startswith("ending minicluster-server-ada"), line
    assert full.disk.free_bytes < RESERVE
    # Tenants who write little are not blamed for the full disk.
    await asyncio.to_thread(works_beside, small_disk, jobs)
    assert len(ended(small_disk)) == len(before) + 1


def test_a_full_disk_is_named_and_forgotten_once_there_is_room(jobs: Jobs, small_disk: LabCluster) -> None:
    """No job filled the disk, so no job is ended; the reserve is used up, too."""
    full = node(small_disk)
    check_nothing_of_jobs_left(small_disk)  # A warm gang needs no space, and its end frees some.
    full.fill_disk()
    failed = jobs.wait(jobs.submit(counting(3), nodes=3), "failed")
    assert failed["state"] == "failed", jobs.history(failed["id"])
    assert failed["error"]["node"] == full.name
    shown = " ".join(failed["error"][part] for part in ("message", "traceback", "hint"))
    assert "disk is full" in shown and "doctor" in shown

    full.free_disk()
    check_nothing_of_jobs_left(small_disk)
    done = jobs.submit(counting(3), nodes=3)
    assert jobs.wait(done, "succeeded")["state"] == "succeeded"
    assert counted(jobs.log(done, rank=2)) == [0, 1, 2]


async def spawn_page(person: Person) -> str:
    page = await person.visitor.http.get("/hub/spawn")
    return page.text
