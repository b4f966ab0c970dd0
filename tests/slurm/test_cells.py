"""A notebook on Slurm: the scenarios of all engines, and what is shown of Slurm's own queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.support.processes import find, of_data_folder, signal_all

from .. import scenarios
from ..hub.clusters import RunningCluster
from ..patience import WITHIN_S
from .daemons import SlurmDaemons
from .hub import SlurmSite, given_back, running

Scenario = Callable[[scenarios.Site], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def cluster(slurm: SlurmDaemons, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    folder = tmp_path_factory.mktemp("slurm-hub")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINICLUSTER_TREE", str(folder))
        started = running(slurm, folder)
        try:
            yield started
            assert started.end() == 0
        finally:
            started.kill()
            signal_all(find(of_data_folder(folder / "shared")))


@pytest.fixture
async def site(slurm: SlurmDaemons, cluster: RunningCluster) -> AsyncIterator[SlurmSite]:
    """The first user at work; afterwards, Slurm has none of the cluster's jobs."""
    async with Visitor(cluster.url, "admin") as visitor:
        await visitor.log_in(cluster.password)
        await visitor.start_server()
        await visitor.http.get(SERVICE_PATH)
        yield SlurmSite(slurm, visitor)
    await given_back(slurm)


@pytest.mark.parametrize("scenario", scenarios.ALL, ids=lambda scenario: scenario.__name__)
async def test_it_works_on_slurm(site: SlurmSite, scenario: Scenario) -> None:
    await scenario(site)


async def test_a_waiting_job_shows_slurms_reason_and_estimate_and_starts_when_slurm_lets_it(
    slurm: SlurmDaemons, site: SlurmSite
) -> None:
    blocker = slurm.run("sbatch", "--parsable", "-N3", "--exclusive", "-t5", "--wrap=sleep 600").strip()
    async with open_kernel(site.visitor, scenarios.NOTEBOOK) as kernel:
        job = await scenarios.submitted(site, kernel, "--nodes 3", "print('a rank')")
        async with asyncio.timeout(WITHIN_S):
            while (shown := await scenarios.ask(site, "GET", f"api/jobs/{job}"))["expected_start_at"] is None:
                assert shown["state"] == "queued", shown
                await asyncio.sleep(0.2)
        assert "waits in Slurm's queue" in shown["reason"] and "(Slurm: " in shown["reason"], shown
        assert 0 < shown["expected_start_at"] - time.time() < 400, shown
        stopped = await scenarios.submitted(site, kernel, "--nodes 3", "print('never')")
        await waiting(slurm, 2)
        await scenarios.ask(site, "POST", f"api/jobs/{stopped}/stop")
        assert (await scenarios.reached(site, stopped))["state"] == "stopped"
        await waiting(slurm, 1)
        slurm.run("scancel", blocker)
        assert (await scenarios.reached(site, job))["state"] == "succeeded"


async def waiting(slurm: SlurmDaemons, count: int) -> None:
    """Wait until so many jobs wait in Slurm."""
    async with asyncio.timeout(WITHIN_S):
        while len(slurm.run("squeue", "-h", "-t", "PENDING", "-o", "%i").split()) != count:
            await asyncio.sleep(0.2)


async def test_an_allocation_that_slurm_takes_back_is_a_lost_node_and_the_job_goes_on(
    slurm: SlurmDaemons, site: SlurmSite
) -> None:
    async with open_kernel(site.visitor, scenarios.NOTEBOOK) as kernel:
        job = await scenarios.begun(site, kernel, "--nodes 2")
        (number,) = slurm.run("squeue", "-h", "-o", "%i").split()
        slurm.run("scancel", number)
        again = await scenarios.reached(site, job, attempt=2)
        assert again["state"] == "running", await scenarios.history(site, job)
        await scenarios.ask(site, "POST", f"api/jobs/{job}/stop")
        await scenarios.reached(site, job)


async def test_nothing_is_reserved_here(site: SlurmSite) -> None:
    answer = await site.visitor.http.post(
        f"{SERVICE_PATH}api/nodes/n1/drain",
        json={"note": "a new fan"},
        headers={"X-XSRFToken": site.visitor.xsrf(SERVICE_PATH)},
    )
    assert answer.status_code == 409 and "Slurm owns the slots" in answer.text
