"""Jobs and servers that use all available resources: the hub, the job service and others' work continue."""

from __future__ import annotations

import pytest

from ..cluster import LabCluster
from ..jobs import Jobs, administrator, counting
from ..people import People, text

MEMORY_PER_SLOT = 1_500_000_000
FORK_BOMB = """
import os, subprocess, time
subprocess.Popen(["bash", "-c", ":(){ :|:& };:"], stderr=subprocess.DEVNULL)
refused = 0
while refused < 5:
    time.sleep(0.1)
    try:
        os.waitpid(pid, 0) if (pid := os.fork()) else os._exit(0)
    except BlockingIOError:
        refused += 1
print("no process more", flush=True)
"""
FULL_MEMORY = """
taken = []
while True:
    taken.append(bytearray(b"x" * (20 << 20)))
"""
FULL_SHARED_MEMORY = """
import time
try:
    with open("/dev/shm/all", "wb") as file:
        while True:
            file.write(b"x" * (1 << 20))
except OSError as error:
    print("shared memory:", error.strerror, flush=True)
"""
BOMB = "hundreds of processes that fork take all of the cores from the parts beside it"
WAIT = "while True: time.sleep(0.5)\n"


@pytest.fixture(scope="module")
def ready(standing: LabCluster) -> LabCluster:
    """The cluster with little memory per slot, since the lab's machines share one machine's memory."""
    standing.set_options(
        "--service-option=--SwarmEngine.pids=512",
        f"--service-option=--SwarmEngine.memory_per_slot_bytes={MEMORY_PER_SLOT}",
        "--service-option=--MiniclusterHub.keep_warm_s=0.2",
    )
    return standing


def works_beside(cluster: LabCluster, jobs: Jobs) -> None:
    """Check that a job on the same nodes succeeds, and that an administrator can log in."""
    beside = jobs.submit(counting(10), nodes=3)
    done = jobs.wait(beside, "succeeded")
    assert done["state"] == "succeeded", done
    with administrator(cluster, log_in=True) as other:
        assert other.job(beside)["id"] == beside


@pytest.mark.alone(BOMB)
@pytest.mark.parametrize(
    ("hog", "sign"), [(FORK_BOMB, "no process more"), (FULL_SHARED_MEMORY, "shared memory: No space left")]
)
def test_a_job_that_takes_all_processes_or_shared_memory_leaves_others_alone(
    jobs: Jobs, ready: LabCluster, hog: str, sign: str
) -> None:
    greedy = jobs.submit(hog + WAIT, nodes=3)
    for rank in range(3):
        jobs.wait_log(greedy, sign, rank)
    works_beside(ready, jobs)
    assert jobs.job(greedy)["state"] == "running", (jobs.job(greedy), jobs.history(greedy))
    jobs.stop(greedy)
    assert jobs.wait(greedy, "stopped")["state"] == "stopped"


def test_a_job_that_takes_all_memory_is_ended_for_it_and_others_are_not(
    jobs: Jobs, ready: LabCluster
) -> None:
    beside = jobs.submit(counting(300), nodes=3)
    jobs.wait_log(beside, "step 1")
    failed = jobs.wait(jobs.submit(FULL_MEMORY, nodes=3), "failed")
    assert failed["error"]["kind"] == "memory"
    assert "1.5 GB" in failed["error"]["message"]
    works_beside(ready, jobs)
    assert jobs.wait(beside, "succeeded")["state"] == "succeeded"


@pytest.mark.alone(BOMB)
async def test_a_fork_bomb_in_a_notebook_stays_in_its_server(ready: LabCluster, people: People) -> None:
    async with people.at_work("ada") as ada, people.at_work("grace") as grace:
        async with ada.kernel() as bombed:
            assert "no process more" in text(await bombed.run(FORK_BOMB))
        async with grace.kernel() as other:
            assert text(await other.run("print(6 * 7)")).strip() == "42"
        assert unlimited_servers(ready) == []


def unlimited_servers(cluster: LabCluster) -> list[str]:
    """Return the services of notebook servers that lack a limit on memory, CPUs or processes."""
    with cluster.manager.docker() as client:
        services = client.services(filters={"label": "org.minicluster.role=server"})
    wanted = {"MemoryBytes", "NanoCPUs", "Pids"}
    limited = {one["Spec"]["Name"]: one["Spec"]["TaskTemplate"]["Resources"]["Limits"] for one in services}
    return [name for name, limits in limited.items() if not wanted <= {key for key in limits if limits[key]}]
