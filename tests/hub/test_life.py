"""A cluster's start, end and second start: no process remains, no data is lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.support.processes import find, lives, of_data_folder

from ..patience import WITHIN_S, until
from .clusters import RunningCluster, command, free_port
from .conftest import notebook_api
from .jobs import submit

Start = Callable[..., RunningCluster]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start clusters on one data folder, one after the other."""
    started: list[RunningCluster] = []

    def start_one(*arguments: str, port: int | None = None) -> RunningCluster:
        started.append(RunningCluster(tmp_path / "data", *arguments, port=port))
        return started[-1]

    yield start_one
    for cluster in started:
        cluster.kill()


async def use_everything(cluster: RunningCluster, visitor: Visitor) -> int:
    """Open a kernel with a stray child, start a job and wait until it runs; return the job's id."""
    await visitor.start_server()
    async with open_kernel(visitor, "quickstart.ipynb") as kernel:
        await kernel.run("import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)")
    async for api in notebook_api(visitor):
        job = (await submit(api, nodes=2)).json()["id"]
        deadline = time.monotonic() + 60
        while (seen := (await api.get(f"api/jobs/{job}")).json())["state"] != "running":
            assert time.monotonic() < deadline, seen
            assert seen["state"] in {"queued", "starting"}, seen
            await asyncio.sleep(0.2)
        return job
    raise AssertionError


async def test_ctrl_c_ends_everything_and_the_next_start_goes_on(start: Start) -> None:
    cluster = start()
    password = cluster.password
    async with Visitor(cluster.url, "admin") as visitor:
        await visitor.log_in(password)
        job = await use_everything(cluster, visitor)
        before = cluster.processes()
        assert len(before) >= 6
        assert cluster.end(signal.SIGINT) == 0
        assert not [process for process in before if lives(process)]
        assert not cluster.processes()

        again = start(port=cluster.port)
        assert "as before" in again.words
        # The cookie of the first login still counts, and the job is known.
        await visitor.start_server()
        await visitor.http.get(SERVICE_PATH)
        known = await visitor.call("GET", f"{SERVICE_PATH}api/jobs/{job}", SERVICE_PATH)
        assert known["owner"] == "admin"
        assert (await Visitor(again.url, "admin").log_in(password)).status_code == httpx.codes.OK
        assert again.end() == 0
    assert not again.processes()


async def test_an_opened_notebook_has_a_gang_before_its_first_cell(start: Start) -> None:
    cluster = start()
    async with Visitor(cluster.url, "admin") as visitor:
        await visitor.log_in(cluster.password)
        await visitor.start_server()
        await visitor.http.get(SERVICE_PATH)

        async def warm_nodes() -> list[str]:
            nodes = (await visitor.call("GET", f"{SERVICE_PATH}api/nodes", SERVICE_PATH))["nodes"]
            return [node["name"] for node in nodes for slot in node["slots"] if slot["warm"]]

        async with open_kernel(visitor, "quickstart.ipynb") as kernel:
            async with asyncio.timeout(WITHIN_S):
                while len(set(await warm_nodes())) < 3:
                    await asyncio.sleep(0.1)
            agents = agents_of(cluster)
            assert len(agents) == 3
            await kernel.run("%%distribute\nimport minicluster as mc\nranks = mc.world_size()")
            assert await kernel.evaluate("ranks") == "3"
        assert agents_of(cluster) == agents


def agents_of(cluster: RunningCluster) -> set[int]:
    return {one.pid for one in cluster.processes() if "minicluster.runtime.agent" in one.cmdline()}


@pytest.mark.full("in the gate all ends by Ctrl-C")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_other_signals_end_everything_too(start: Start, number: int) -> None:
    cluster = start()
    async with Visitor(cluster.url, "admin") as visitor:
        await visitor.log_in(cluster.password)
        await visitor.start_server()
    assert cluster.end(number) == 0
    assert not cluster.processes()


@pytest.mark.alone("it compares two times")
@pytest.mark.full("it compares two times, alone")
def test_a_second_start_takes_little_longer_than_importing_jupyterhub(start: Start) -> None:
    start().end()
    again = start()
    again.end()
    # Measured in the same minute, since other work on this machine slows both; alone it is 1.2 times.
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "jupyterhub", "--version"], stdout=subprocess.DEVNULL, check=True)
    assert again.start_s < 2 * (time.monotonic() - started)


def test_when_the_hub_dies_the_rest_ends_and_it_is_said(start: Start) -> None:
    cluster = start()
    cluster.hub().kill()
    rest, _ = cluster.process.communicate(timeout=WITHIN_S)
    assert cluster.process.returncode == 1
    assert "The hub ended by itself (exit code -9)" in rest
    assert str(cluster.data / "hub" / "hub.log") in rest
    assert "Traceback" not in rest
    assert not cluster.processes()


@pytest.mark.full("in the gate all ends by Ctrl-C, and a killed service is started again")
async def test_after_a_kill_the_next_start_clears_up_and_tasks_go_on(start: Start) -> None:
    cluster = start()
    async with Visitor(cluster.url, "admin") as visitor:
        await visitor.log_in(cluster.password)
        job = await use_everything(cluster, visitor)
        # The end that nobody hears: the program and the hub are gone, the proxy holds the port.
        hub = cluster.hub()
        # Stopped first: either of the two clears up when it sees the other one go.
        cluster.process.send_signal(signal.SIGSTOP)
        hub.kill()
        cluster.process.kill()
        cluster.process.wait()
        hub.wait(10)

        again = start(port=cluster.port)
        await visitor.http.get(SERVICE_PATH)
        known = await visitor.call("GET", f"{SERVICE_PATH}api/jobs/{job}", SERVICE_PATH)
        assert (known["state"], known["attempt"]) == ("running", 1)
        assert again.end() == 0
    assert not again.processes()


def test_a_signal_during_the_start_ends_it_as_well(tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = subprocess.Popen(
        command("--data", str(data), "--port", str(free_port())), stdout=subprocess.PIPE, text=True
    )
    until(lambda: len(find(of_data_folder(data))) >= 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WITHIN_S) == 0
    assert not find(of_data_folder(data))
