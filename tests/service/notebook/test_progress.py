"""The scheduler uses the progress that trainings log: real agents, real ranks."""

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.wire import JobState

from ... import messages
from ...patience import until
from ..cells import submit
from .conftest import Cluster

TRAINING = """
import time, torch, minicluster as mc
model = torch.nn.Linear(8, 1)
model, optimizer = mc.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
begin = mc.resume(model, optimizer)
for step in mc.progress(range(begin, {steps})):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mc.checkpoint(model, optimizer, step=step + 1, every=10)
    time.sleep(0.02)
    if step == begin + 100:
        print("well under way", flush=True)
"""


@pytest.fixture
def lab(tmp_path, hub_url):
    cluster = Cluster(tmp_path, hub_url, "--policy", "srtf", "--MiniclusterHub.min_run_s=1")
    ada = JobServiceClient(cluster.url, "ada-token", retry_for_s=2)
    yield cluster, ada
    ada.close()
    cluster.end()


def under_way(ada, *jobs):
    until(lambda: all("well under way" in ada.log(job, 0, 1 << 20)[0] and ada.snapshots(job) for job in jobs))


@pytest.mark.full("tests/unit/jobs/test_progress_rates has it without processes")
def test_who_is_done_sooner_by_the_logged_progress_stays_though_its_time_limit_is_longer(lab):
    _, ada = lab
    long = submit(ada, TRAINING.format(steps=30_000), 1, 1, timeout_s=900)
    soon_done = submit(ada, TRAINING.format(steps=5_000), 1, 1, timeout_s=3000)
    under_way(ada, long, soon_done)
    short = submit(ada, "import time; time.sleep(2)", 2, 2, timeout_s=20)
    until(lambda: ada.job(short).state is JobState.SUCCEEDED)
    assert messages.MAKES_ROOM.format(job=short) in ada.ask("GET", f"api/jobs/{long}/history").text
    assert ada.job(soon_done).attempt == 1
    until(lambda: ada.job(long).attempt == 2)
    for job in (long, soon_done):
        ada.stop(job)
