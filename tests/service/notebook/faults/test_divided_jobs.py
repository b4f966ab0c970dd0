"""Jobs with divided models: a node is lost, slots go to others and come back. Real agents, real ranks."""

import re

import pytest

from minicluster.wire import JobState

from ....patience import until
from ...cells import TRAINING, submit
from .test_lost_agents import agents, has_said
from .test_preemption import SHORT, began, lab

__all__ = ["lab"]

DIVIDED = (
    TRAINING.replace("batch_size=4, shuffle=True)", 'batch_size=4), strategy="fsdp"')
    .replace("torch.nn.Linear(8, 1)", "torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Linear(12, 1))")
    .replace("torch.optim.SGD(model.parameters(), lr=0.01)", "torch.optim.AdamW(model.parameters())")
)  # fmt: skip


def stored(service, job):
    """Return the newest step that is in the job's storage, in as many parts as nodes."""
    found = service.snapshots(job)
    return found[0].step if found else 0


def test_a_lost_node_costs_no_more_than_what_the_storage_lacks(cluster, service):
    job = submit(service, DIVIDED, 2, 3)
    try:
        until(lambda: stored(service, job))
        assert service.snapshots(job)[0].parts == 3
        before = agents(cluster)
        before[max(before, key=int)].kill()
        until(lambda: service.job(job).attempt == 2)
        until(lambda: service.job(job).state.terminal or has_said(service, job, "step ")())
        assert not service.job(job).state.terminal, service.job(job).error
        step, ranks = until(lambda: began(service, job))
        assert step >= 10
        assert ranks == 2
    finally:
        service.stop(job)
        until(lambda: service.job(job).state.terminal)


@pytest.mark.full("tests/runtime has it without the service")
@pytest.mark.parametrize("lab", ["priority"], indirect=True)
def test_a_divided_job_makes_room_and_goes_on_from_all_its_parts(lab):
    ada, bob = lab
    job = submit(ada, DIVIDED, 3, 3, priority=20)
    until(lambda: stored(ada, job))
    urgent = submit(bob, SHORT, 3, 3, priority=50)
    until(lambda: bob.job(urgent).state is JobState.SUCCEEDED)
    step, ranks = until(lambda: ada.job(job).attempt == 2 and began(ada, job))
    assert step >= 10 and ranks == 3
    ada.stop(job)
    until(lambda: ada.job(job).state.terminal)


@pytest.mark.full("tests/runtime has it without the service")
@pytest.mark.parametrize("lab", ["elastic_fifo"], indirect=True)
def test_a_divided_job_shrinks_for_another_and_grows_back(lab, tmp_path):
    ada, bob = lab
    job = submit(ada, DIVIDED, 1, 3)
    until(lambda: stored(ada, job))
    go = tmp_path / "go"
    wait = f"import time\nfrom pathlib import Path\nwhile not Path({str(go)!r}).exists(): time.sleep(0.05)"
    other = submit(bob, wait, 1, 1)
    shrunk = until(lambda: ada.job(job).attempt == 2 and began(ada, job))
    until(lambda: len(re.findall(r"\nstep ", ada.log(job, 0, 1 << 20)[0])) > 60)
    go.touch()
    until(lambda: bob.job(other).state is JobState.SUCCEEDED)
    grown = until(lambda: ada.job(job).attempt == 3 and began(ada, job))
    assert (shrunk[1], grown[1]) == (2, 3)
    assert 10 <= shrunk[0] <= grown[0]
    ada.stop(job)
    until(lambda: ada.job(job).state.terminal)
