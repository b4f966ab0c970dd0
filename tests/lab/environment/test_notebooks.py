"""The example notebooks on three hosts: bytes counted on their cables, a machine that is switched off.

test_cinic10.py has the paper's experiment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbformat import NotebookNode

from minicluster_hub.launch.kernel import KernelConnection

from ... import notebooks
from ..cluster import LabCluster
from ..faults.inject import power_lost
from ..jobs import WITHIN_S, Jobs
from ..machines import Lab, Node
from ..people import People, text

OTHER_TRAFFIC_BYTES = 30_000_000
"""What else crosses the cables while a cell runs: reports, output, readings, the Swarm's own."""


@pytest.fixture
def policy_kept(jobs: Jobs) -> Iterator[Jobs]:
    """An administrator's jobs; whatever a notebook did, the former policy is active afterwards."""
    before = jobs.http.get("api/policy").json()["in_force"]["choice"]
    yield jobs
    jobs.http.put("api/policy", json=before).raise_for_status()


def token_of(jobs: Jobs) -> str:
    """Return the administrator's token, as it is pasted into a notebook."""
    return jobs.http.headers["Authorization"].removeprefix("token ")


async def test_one_mix_of_jobs_under_three_policies(policy_kept: Jobs, people: People, tree: Path) -> None:
    settings = f"token = {token_of(policy_kept)!r}\n{notebooks.SHORT_MIX}"
    async with people.at_work("fritz") as fritz, fritz.kernel("schedulearn.ipynb") as kernel:
        cells = await notebooks.run_all(kernel, tree, "schedulearn.ipynb", settings)
        await notebooks.check_policies(kernel, cells)


async def test_bytes_between_nodes_are_those_on_the_cables(
    policy_kept: Jobs, standing: LabCluster, people: People, tree: Path
) -> None:
    cables = Cables(standing.lab)
    # There is a reading each two seconds: 20 steps are over before the second one.
    settings = f"token = {token_of(policy_kept)!r}\nsteps = 1000"
    async with people.at_work("gesa") as gesa, gesa.kernel("placement.ipynb") as kernel:
        cells = await notebooks.run_all(kernel, tree, "placement.ipynb", settings, cables.after)
        traffic = await notebooks.check_traffic(kernel, cells)
        await notebooks.check_placed(kernel)
        noted = {name: await notebooks.value(kernel, f"noted({name!r})") for name in traffic.between}
    for name, counted in traffic.between.items():
        carried = cables.sent[f"--name {name} "]
        assert counted <= carried <= 1.25 * counted + OTHER_TRAFFIC_BYTES, (name, counted, carried)
    # Readings catch most of a run of some seconds.
    assert noted["spread"] > traffic.between["spread"] / 4, noted
    assert (noted["one-node"] or 0) < OTHER_TRAFFIC_BYTES, noted


class Cables:
    """Counts what all nodes send while each cell runs. sent: bytes, by words of the cell's line."""

    def __init__(self, lab: Lab) -> None:
        self._nodes = lab.nodes
        self._before = self._now()
        self.sent: dict[str, int] = {}

    def after(self, cell: NotebookNode) -> None:
        now = self._now()
        line = cell.source.partition("\n")[0]
        for words in ("--name spread ", "--name packed ", "--name one-node "):
            if words in line:
                self.sent[words] = now - self._before
        self._before = now

    def _now(self) -> int:
        return sum(node.bytes_sent() for node in self._nodes)


async def test_storms_in_large_pictures(cluster: LabCluster, people: People, tree: Path) -> None:
    async with people.at_work("hanna") as hanna, hanna.kernel("storm_images.ipynb") as kernel:
        try:
            cells = await notebooks.run_all(kernel, tree, "storm_images.ipynb", notebooks.FEW_STORMS)
            await notebooks.check_storms(kernel, cells, machines=3)
        finally:
            text(await kernel.run("%distribute data rm storms"))
            text(await kernel.run("import shutil; shutil.rmtree('storms')"))


async def test_a_machine_is_switched_off_while_two_trainings_run(
    jobs: Jobs, standing: LabCluster, people: People, tree: Path
) -> None:
    first = standing.first.name
    async with people.at_work("ivo", node=first) as ivo, ivo.kernel("fault_tolerance.ipynb") as kernel:
        run = asyncio.create_task(notebooks.run_all(kernel, tree, "fault_tolerance.ipynb", "steps = 400"))
        victim = await running(jobs, standing, run)
        with power_lost(standing, victim):
            await run
        await survived(kernel)


async def running(jobs: Jobs, cluster: LabCluster, run: asyncio.Task[object]) -> Node:
    """Wait until the fault-tolerant training has made steps; return a node of its that may be lost."""

    def nodes() -> set[str]:
        for job in jobs.http.get("api/jobs?owner=all&state=open").json()["jobs"]:
            if job["name"] == "goes-on" and jobs.log(job["id"]).count("step ") > 40:
                return {*job["nodes"]} - {cluster.first.name}
        return set()

    async with asyncio.timeout(WITHIN_S):
        while not (names := await asyncio.to_thread(nodes)):
            assert not run.done(), run
            await asyncio.sleep(0.5)
    return next(node for node in cluster.lab.nodes if node.name in names)


async def survived(kernel: KernelConnection) -> None:
    """Check that the training with ranks that go on has all of its steps, and made some of them alone."""
    lost = {row["training"]: row for row in await notebooks.value(kernel, "lost")}
    assert lost["goes-on"]["attempts"] == 1
    assert lost["goes-on"]["steps done again"] <= 1
    assert {row["steps that count"] for row in lost.values()} == {400}
    history = (await notebooks.value(kernel, "goes_on"))["history"]
    assert {ranks for _, _, ranks in history} == {1, 2}
