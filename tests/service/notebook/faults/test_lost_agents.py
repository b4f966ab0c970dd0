"""An agent dies with its ranks, as on a power loss: the others continue with the same agents."""

import re
import signal
from contextlib import suppress

import psutil
import pytest

from minicluster.wire import JobState
from minicluster_hub.support.processes import signal_all

from ....patience import until
from ....processes import runs
from ...cells import TRAINING, submit

OTHERS = pytest.mark.full("the same with the others' agents")
FROZEN = pytest.mark.full("the gate has a killed agent here, and a node that is cut off in the lab")
REDUCING = """
import os, time, torch, torch.distributed as dist
for step in range(100_000):
    there = torch.ones(1)
    dist.all_reduce(there)
    print(f"step {step} on", int(there), flush=True)
    time.sleep(0.02)
"""
WRITING = """
import time, minicluster as mc
(mc.output() / "note").write_text("before")
print("written", flush=True)
while True: time.sleep(0.1)
"""


def agents(cluster):
    """Return the agents by task id."""
    found = {}
    for process in cluster.tasks():
        with suppress(psutil.NoSuchProcess, KeyError):  # The process may end meanwhile.
            if runs(process, "minicluster.runtime.agent"):
                found[process.environ()["MINICLUSTER_TASK"]] = process
    return found


def has_said(service, job, text, rank=0):
    return lambda: text in service.log(job, rank, 1 << 20)[0]


@pytest.fixture
def running(cluster, service, request):
    """A job on three nodes and its agents; the parameter is its minimum number of nodes."""
    job = submit(service, REDUCING, request.param, 3)
    until(has_said(service, job, "on 3"))
    yield job, agents(cluster)
    service.stop(job)
    until(lambda: service.job(job).state.terminal)


@pytest.mark.parametrize("running", [2], indirect=True)
@pytest.mark.parametrize("index", [0, *(pytest.param(one, marks=OTHERS) for one in (1, 2))])
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=FROZEN)], ids=["killed", "frozen"]
)
def test_the_others_go_on(cluster, service, running, index, number):
    job, before = running
    task = sorted(before, key=int)[index]
    victims = [before[task], *before[task].children(recursive=True)]
    signal_all(victims, number)
    until(lambda: service.job(job).attempt == 2)
    until(has_said(service, job, "on 2"))
    until(lambda: service.job(job).state is JobState.RUNNING)
    assert kept(cluster, before, task)
    until(lambda: not any(process.is_running() for process in victims))


@pytest.mark.full("in the gate the others go on")
def test_the_others_wait_for_one_in_its_place_and_give_it_their_snapshot(cluster, service):
    job = submit(service, TRAINING, 3, 3)
    # By then each node has all of the snapshot of step 20, for which that of step 30 waited.
    until(has_said(service, job, "step 31 on 3"))
    before = agents(cluster)
    task = min(before, key=int)
    try:
        before[task].kill()
        until(lambda: service.job(job).attempt == 2)
        until(lambda: service.job(job).state.terminal or has_said(service, job, "\nstep ")())
        until(lambda: service.job(job).state.terminal or service.job(job).state is JobState.RUNNING)
        assert service.job(job).state is JobState.RUNNING, service.job(job).error
        steps = [line for line in service.log(job, 0, 1 << 20)[0].splitlines() if line.startswith("step ")]
        assert int(steps[0].split()[1]) > 20, "it went on"
        assert len(agents(cluster)) == 3
        assert kept(cluster, before, task)
    finally:
        service.stop(job)
        until(lambda: service.job(job).state.terminal)


def kept(cluster, before, lost):
    """Whether the agents of all other tasks are the same as before."""
    others = {number: process.pid for number, process in before.items() if number != lost}
    return others.items() <= {number: process.pid for number, process in agents(cluster).items()}.items()


@pytest.mark.full("tests/runtime/test_fault_tolerant has it without a notebook")
@pytest.mark.parametrize("index", [0, 2])
def test_the_ranks_of_a_fault_tolerant_job_go_on_and_another_joins_them(cluster, service, index):
    job = submit(service, TRAINING, 3, 3, fault_tolerant=True)
    until(lambda: re.search(r"\nstep \d+ on 3\n", service.log(job, 0, 1 << 20)[0]))
    until(lambda: service.job(job).state is JobState.RUNNING)
    before = agents(cluster)
    task = sorted(before, key=int)[index]
    try:
        before[task].kill()
        until(has_said(service, job, "on 2", rank=1))
        until(has_said(service, job, "\nstep ", rank=3))
        assert (service.job(job).attempt, service.job(job).world_size) == (1, 3)
        assert kept(cluster, before, task)
        steps = [line for line in service.log(job, 3, 1 << 20)[0].splitlines() if line.startswith("step ")]
        assert int(steps[0].split()[1]) > 1, "it took the others' state"
    finally:
        service.stop(job)
        until(lambda: service.job(job).state.terminal)


def test_what_the_others_wrote_is_brought_at_once(cluster, service):
    """They are uploaded at once, as the job may be stopped while it waits for another node."""
    job = submit(service, WRITING, 3, 3)
    for rank in range(3):
        until(has_said(service, job, "written", rank))
    agents(cluster).popitem()[1].kill()
    until(lambda: service.job(job).attempt == 2)
    until(lambda: len(service.artifacts(job).artifacts) >= 2)
    assert service.job(job).attempt == 2, "the files came before the job ended"
    service.stop(job)
    until(lambda: service.job(job).state.terminal)


def test_a_session_ends_with_the_ranks_that_it_lost(cluster, service, notebook):
    notebook.run("%distribute up --nodes 3")
    session = notebook.shell.magics_manager.registry["Distribute"]._session.job
    try:
        lost = agents(cluster)
        victim = lost[max(lost, key=int)]
        signal_all([victim, *victim.children(recursive=True)], signal.SIGKILL)
        until(lambda: service.job(session.id).state is JobState.FAILED)
        assert "lost its ranks on node-" in service.job(session.id).error.message
        assert service.job(session.id).attempt == 1
    finally:
        notebook.run("%distribute down")
