"""A job is stopped, whatever it does: its slots are free within seconds, and no node has remains."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from .cluster import LabCluster
from .faults.inject import SUDDEN_LOSSES, hanging_registries
from .faults.promises import held_slots
from .jobs import WITHIN_S, Jobs
from .machines import Node
from .machines.processes import wait_for
from .remains import Census, processes_of, wait_clean, wait_rid_of_jobs

pytestmark = pytest.mark.alone("how soon a stopped job is gone")
CLEAN_WITHIN_S = 40.0
"""Limit from the click on Stop on, for a busy machine; tests print the time. Gangs do not stay warm here."""
HERE = "print('here', flush=True)\n"
WAITING = f"import time\n{HERE}while True: time.sleep(0.1)\n"
IN_ALL_REDUCE = f"""
import time, torch, torch.distributed as dist
dist.all_reduce(torch.ones(1))
{HERE}
while dist.get_rank() == 0:
    time.sleep(0.1)
dist.all_reduce(torch.ones(1))
"""
IN_A_LOADER = """
import time, torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1_000_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.zeros(1024)
for number, _ in enumerate(torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2)):
    if number == 2:
        print('here', flush=True)
"""
SWALLOWED = f"""
import time
{HERE}
while True:
    try:
        while True: sum(range(1000))
    except KeyboardInterrupt:
        print('not now', flush=True)
"""
DEAF = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(6000)"], env={{}}, start_new_session=True)
{HERE}
time.sleep(6000)
"""
FROZEN = f"""
import os, signal
{HERE}
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def before(jobs: Jobs, ready: LabCluster) -> Census:
    """The census without a job."""
    return Census.of(ready)


def holders(jobs: Jobs, job: int) -> set[str]:
    """Return the nodes on which a job holds slots."""
    return {node for node, holder in held_slots(jobs) if holder == job}


def stop_clean(
    jobs: Jobs, job: int, before: Census, say: Callable[[str], None], without: Node | None = None
) -> None:
    """Stop a job; check in time that it is stopped, that its slots are free, and that nothing is left.

    without: a node that does not answer, which is not checked.
    """
    since = time.monotonic()
    jobs.stop(job)
    done = jobs.wait(job, within_s=since + CLEAN_WITHIN_S - time.monotonic())
    assert done["state"] == "stopped", (done, jobs.history(job))
    stopped_s = time.monotonic() - since
    away = without.name if without else ""
    while held := holders(jobs, job) - {away}:
        assert time.monotonic() < since + CLEAN_WITHIN_S, f"slots of {held} are still the job's"
        time.sleep(0.1)
    clean_s = wait_clean(jobs.cluster, before, since, CLEAN_WITHIN_S, without)
    say(f"stopped after {stopped_s:.1f} s, nothing left after {clean_s:.1f} s")


def test_while_it_waits_for_slots(jobs: Jobs, ready: LabCluster, say: Callable[[str], None]) -> None:
    blocker = jobs.submit(WAITING, nodes=3, slots_per_node=2)
    for rank in range(6):
        jobs.wait_log(blocker, "here", rank)
    before = Census.of(ready)
    job = jobs.submit(WAITING, nodes=3)
    assert jobs.wait(job, "queued")["state"] == "queued"
    stop_clean(jobs, job, before, say)
    assert jobs.job(blocker)["state"] == "running"


def test_while_its_image_is_pulled(
    jobs: Jobs, ready: LabCluster, before: Census, other_image: str, say: Callable[[str], None]
) -> None:
    with hanging_registries(ready, other_image):
        job = jobs.submit(WAITING, nodes=3, image=other_image)
        assert jobs.wait(job, "starting")["state"] == "starting"
        wait_for(lambda: str(ready.remains()).count("service ") == 3, "the tasks' services", WITHIN_S, 0.1)
        time.sleep(2)
        assert jobs.job(job)["state"] == "starting", jobs.history(job)
        stop_clean(jobs, job, before, say)


@pytest.mark.parametrize("after_s", [0, 0.5, 1.3, 2.5])
def test_while_it_starts(jobs: Jobs, before: Census, say: Callable[[str], None], after_s: float) -> None:
    job = jobs.submit(WAITING, nodes=3)
    time.sleep(after_s)
    stop_clean(jobs, job, before, say)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(WAITING, id="waiting"),
        pytest.param(IN_ALL_REDUCE, id="in-all-reduce", marks=pytest.mark.gate("Stop stops")),
        pytest.param(IN_A_LOADER, id="in-a-data-loader"),
        pytest.param(SWALLOWED, id="interrupt-swallowed"),
        pytest.param(DEAF, id="deaf"),
        pytest.param(FROZEN, id="stopped"),
    ],
)
def test_while_it_runs(jobs: Jobs, before: Census, say: Callable[[str], None], source: str) -> None:
    job = jobs.submit(source, nodes=3)
    for rank in range(3):
        jobs.wait_log(job, "here", rank)
    stop_clean(jobs, job, before, say)


def test_while_all_processes_of_a_rank_are_frozen(
    jobs: Jobs, ready: LabCluster, before: Census, say: Callable[[str], None]
) -> None:
    """They are frozen from outside, with the zygote; only the agent continues."""
    job = jobs.submit(IN_ALL_REDUCE, nodes=3)
    for rank in range(3):
        jobs.wait_log(job, "here", rank)
    found = processes_of(ready, ready.lab.nodes[1], "minicluster.runtime.rank.zygote")
    assert len(found) > 1, found
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    stop_clean(jobs, job, before, say)


@pytest.mark.parametrize("loss", ["frozen", "cable"])
def test_while_a_node_does_not_answer_the_others_are_clean_and_it_is_once_it_is_back(
    jobs: Jobs, ready: LabCluster, before: Census, say: Callable[[str], None], loss: str
) -> None:
    """Nothing on it can be ended; its slots and the gang's network remain until the Swarm sees it as down."""
    node = ready.lab.nodes[2]
    job = jobs.submit(IN_ALL_REDUCE, nodes=3)
    for rank in range(3):
        jobs.wait_log(job, "here", rank)
    with SUDDEN_LOSSES[loss](ready, node):
        since = time.monotonic()
        stop_clean(jobs, job, before, say, without=node)
        wait_for(lambda: not holders(jobs, job), f"the slots of {node.name}", WITHIN_S, 0.1)
        say(f"the slots of {node.name} were free after {time.monotonic() - since:.1f} s")
    clean_s = wait_rid_of_jobs(ready, before, WITHIN_S)
    say(f"nothing left on {node.name} after {clean_s:.1f} s")
