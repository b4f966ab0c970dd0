"""Running jobs give slots to others and resume from their newest snapshot: real agents, real ranks."""

import re

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.wire import JobState

from .... import messages
from ....patience import until
from ...cells import TRAINING, submit
from ..conftest import Cluster

SHORT = "print('here', flush=True)"


def began(service, job):
    """Return (first step, ranks) of a training's newest attempt; None before its first output."""
    match = re.search(r"from (\d+) on (\d+)", service.log(job, 0, 1 << 20)[0])
    return match and (int(match[1]), int(match[2]))


@pytest.fixture
def lab(tmp_path, hub_url, request):
    """A cluster with the parameter's policy, and two users' clients."""
    cluster = Cluster(tmp_path, hub_url, "--policy", request.param, "--MiniclusterHub.min_run_s=1")
    people = [JobServiceClient(cluster.url, f"{name}-token", retry_for_s=2) for name in ("ada", "bob")]
    yield people
    for person in people:
        person.close()
    cluster.end()


def training(service, least, most, **spec):
    """A training with a snapshot at the service."""
    job = submit(service, TRAINING, least, most, **spec)
    until(lambda: service.snapshots(job))
    return job


@pytest.mark.parametrize("lab", ["priority"], indirect=True)
@pytest.mark.full("tests/unit/policies/test_policies has it without processes")
def test_a_job_makes_room_for_one_of_a_higher_priority_and_goes_on_after_it(lab):
    ada, bob = lab
    job = training(ada, 3, 3, priority=20)
    urgent = submit(bob, SHORT, 3, 3, priority=50)
    until(lambda: bob.job(urgent).state is JobState.SUCCEEDED)
    first_step, ranks = until(lambda: ada.job(job).attempt == 2 and began(ada, job))
    assert first_step >= 10 and ranks == 3, "it went on from a snapshot"
    history = ada.ask("GET", f"api/jobs/{job}/history").text
    assert messages.MAKES_ROOM.format(job=urgent) in history
    ada.stop(job)


@pytest.mark.full("tests/unit/policies/test_policies has it without processes")
@pytest.mark.parametrize("lab", ["priority"], indirect=True)
def test_a_job_of_the_same_priority_waits(lab):
    ada, bob = lab
    job = training(ada, 3, 3)
    equal = submit(bob, SHORT, 1, 1)
    until(lambda: messages.UNTIL_JOB_ENDS.format(job=job) in bob.job(equal).reason)
    assert bob.job(equal).state is JobState.QUEUED and ada.job(job).attempt == 1
    ada.stop(job)
    until(lambda: bob.job(equal).state is JobState.SUCCEEDED)


@pytest.mark.full("tests/unit/policies/test_policies_elastic has it without processes")
@pytest.mark.parametrize("lab", ["elastic_fifo"], indirect=True)
def test_an_elastic_job_shrinks_for_another_and_grows_back(lab, tmp_path):
    ada, bob = lab
    job = training(ada, 1, 3)
    assert began(ada, job) == (0, 3)
    go = tmp_path / "go"
    wait = f"import time\nfrom pathlib import Path\nwhile not Path({str(go)!r}).exists(): time.sleep(0.05)"
    other = submit(bob, wait, 1, 1)
    shrunk = until(lambda: ada.job(job).attempt == 2 and began(ada, job))
    go.touch()
    until(lambda: bob.job(other).state is JobState.SUCCEEDED)
    grown = until(lambda: ada.job(job).attempt == 3 and began(ada, job))
    assert (shrunk[1], grown[1]) == (2, 3)
    assert 10 <= shrunk[0] <= grown[0]
    ada.stop(job)
