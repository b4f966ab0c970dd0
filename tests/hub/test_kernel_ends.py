"""A kernel's end, by whatever cause, does not stop the cell's job; a user's interrupt does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.errors import VisitFailed
from minicluster_hub.launch.kernel import KernelConnection, open_kernel
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.support.processes import SERVER_LABEL, find, labelled, signal_all

from ..patience import WITHIN_S, eventually
from ..processes import runs
from .conftest import Lab
from .test_servers import home, stop_server

NOTEBOOK = "quickstart.ipynb"
_SEES_ITS_END_S = 3.0
"""Longer than a stop takes that was sent after the moment in which the kernel waits for its end."""


class Running:
    """A cell that is not detached, in a kernel of its user; its job ends when `go` is there.

    told: what the kernel says of the cell, as it comes.
    """

    def __init__(
        self,
        visitor: Visitor,
        kernel: KernelConnection,
        told: list[str],
        job: int,
        go: Path,
        cell: asyncio.Task[Any],
    ) -> None:
        self.visitor = visitor
        self.kernel = kernel
        self.told = told
        self.job = job
        self.go = go
        self.cell = cell

    async def state(self) -> str:
        return (await self._get(f"{SERVICE_PATH}api/jobs/{self.job}", SERVICE_PATH))["state"]

    async def kernel_model(self) -> dict[str, Any]:
        here = self.visitor.server_path
        sessions = await self._get(f"{here}api/sessions", here)
        return next(session["kernel"] for session in sessions if session["path"] == NOTEBOOK)

    async def post(self, action: str) -> None:
        here = self.visitor.server_path
        kernel = (await self.kernel_model())["id"]
        await self.visitor.call("POST", f"{here}api/kernels/{kernel}/{action}", here)

    async def wait_for(self, *states: str) -> str:
        async with asyncio.timeout(WITHIN_S):
            while (state := await self.state()) not in states:
                await asyncio.sleep(0.2)
        return state

    async def succeeds(self) -> None:
        """Look at the job for longer than a stop takes, then let it come to its end."""
        until = time.monotonic() + _SEES_ITS_END_S
        while time.monotonic() < until:
            assert await self.state() == "running"
            await asyncio.sleep(0.2)
        self.go.touch()
        assert await self.wait_for("succeeded", "failed", "stopped") == "succeeded"

    async def _get(self, path: str, under: str) -> Any:
        return await self.visitor.call("GET", path, under)


@asynccontextmanager
async def running(visitor: Visitor, go: Path, line: str = "") -> AsyncIterator[Running]:
    """Start a cell of two ranks and wait until it runs."""
    cell = (
        f"%%distribute --nodes 2 {line}\nimport time\nfrom pathlib import Path\n"
        f"while not Path({str(go)!r}).exists():\n    time.sleep(0.1)\nanswer = 42\n"
    )
    newest = max([job["id"] for job in await jobs(visitor)], default=0)
    async with AsyncExitStack() as stack:
        kernel = await stack.enter_async_context(open_kernel(visitor, NOTEBOOK))
        lines = collect_messages(kernel)
        task = asyncio.create_task(kernel.run(cell))
        async with asyncio.timeout(WITHIN_S):
            while not (new := [job for job in await jobs(visitor) if job["id"] > newest]):
                assert not task.done(), task
                await asyncio.sleep(0.1)
        case = Running(visitor, kernel, lines, new[0]["id"], go, task)
        await case.wait_for("running")
        try:
            yield case
        finally:
            go.touch()
            task.cancel()
            with suppress(VisitFailed):  # its kernel may have ended: that is what these tests are about
                await stack.aclose()


def collect_messages(kernel: KernelConnection) -> list[str]:
    """Return a list that grows with what a kernel says."""
    lines: list[str] = []
    answers = kernel._answers

    async def listening(source: str, expressions: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
        async for message in answers(source, expressions):
            lines.append(json.dumps(message["content"]))
            yield message

    kernel._answers = listening  # type: ignore[method-assign]
    return lines


async def jobs(visitor: Visitor) -> list[dict[str, Any]]:
    return (await visitor.call("GET", f"{SERVICE_PATH}api/jobs", SERVICE_PATH))["jobs"]


async def answer_of(visitor: Visitor, job: int) -> str:
    async with open_kernel(visitor, NOTEBOOK) as kernel:
        await kernel.run(f"%distribute attach {job}")
        return await kernel.evaluate("answer")


async def restart(case: Running) -> None:
    await case.post("restart")


async def shutdown(case: Running) -> None:
    here = case.visitor.server_path
    kernel = (await case.kernel_model())["id"]
    await case.visitor.call("DELETE", f"{here}api/kernels/{kernel}", here)


async def stop_my_server(case: Running) -> None:
    await stop_server(case.visitor)


async def kill_kernel(case: Running) -> None:
    signal_all(processes_of(case.visitor.name, "ipykernel_launcher")[:1])


async def kill_server(case: Running) -> None:
    signal_all(processes_of(case.visitor.name, "minicluster_spawner.server"))
    async with asyncio.timeout(WITHIN_S):
        while processes_of(case.visitor.name, "ipykernel_launcher"):
            await asyncio.sleep(0.1)
    # The hub sees it only at its next look, up to 30 s later: here a person presses Stop before.
    await stop_server(case.visitor)


def processes_of(name: str, module: str) -> list[psutil.Process]:
    found = find(labelled(**{SERVER_LABEL: f"{name}/"}))
    return [process for process in found if runs(process, module)]


ALSO = pytest.mark.full("the same with another end of the kernel")


@pytest.mark.parametrize(
    "end",
    [
        restart,
        *(pytest.param(end, marks=ALSO) for end in (stop_my_server, shutdown, kill_kernel, kill_server)),
    ],
)
async def test_the_end_of_a_kernel_leaves_the_job_alone(
    lab: Lab, hedy: Visitor, tmp_path: Path, end: Callable[[Running], Awaitable[None]]
) -> None:
    async with running(hedy, tmp_path / "go") as case:
        await end(case)
        await case.succeeds()
        job = case.job
    await hedy.start_server()
    assert await answer_of(hedy, job) == "42"


async def test_a_persons_interrupt_stops_the_job_and_is_shown(hedy: Visitor, tmp_path: Path) -> None:
    async with running(hedy, tmp_path / "go") as case:
        await case.post("interrupt")
        assert await case.wait_for("stopping", "stopped")
        assert await case.wait_for("stopped")
        outputs = await asyncio.wait_for(case.cell, WITHIN_S)
        assert "Stopped: job" in json.dumps(outputs)
        assert await case.kernel.evaluate("6 * 7") == "42"


@pytest.mark.parametrize("end", [restart, pytest.param(shutdown, marks=ALSO)])
async def test_an_interrupt_stops_the_job_though_its_person_ends_the_kernel_right_after_it(
    hedy: Visitor, tmp_path: Path, end: Callable[[Running], Awaitable[None]]
) -> None:
    async with running(hedy, tmp_path / "go", "--plain") as case:
        await case.post("interrupt")
        # Its end interrupts it, too, and two signals that come before the first one is taken are one.
        await eventually(lambda: any("Stopping: " in line for line in case.told))
        await end(case)
        assert await case.wait_for("succeeded", "failed", "stopped") == "stopped"


async def test_an_interrupt_after_a_restart_is_not_for_the_cell_before(hedy: Visitor, tmp_path: Path) -> None:
    async with running(hedy, tmp_path / "go") as case:
        await case.post("restart")
        await case.post("interrupt")
        await case.succeeds()


@pytest.mark.full("it measures how soon, alone")
@pytest.mark.alone("it measures how soon")
async def test_a_restart_does_not_wait_for_the_cell(hedy: Visitor, tmp_path: Path) -> None:
    async with running(hedy, tmp_path / "go") as case:
        asked = time.monotonic()
        await case.post("restart")
        # What holds on to its cell is sent SIGTERM after 2.5 s.
        assert time.monotonic() - asked < 2.4
        await case.succeeds()


@asynccontextmanager
async def settings(lab: Lab, visitor: Visitor, **values: Any) -> AsyncIterator[None]:
    """Give a user's notebook server settings of its own for a while."""
    file = home(lab, visitor.name) / ".jupyter" / "jupyter_server_config.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(values))
    await stop_server(visitor)
    await visitor.start_server()
    try:
        yield
    finally:
        file.unlink()
        await stop_server(visitor)
        await visitor.start_server()


async def culler_token(admin: Visitor, name: str) -> str:
    """An administrator's token that sees and stops one user's server only: others have theirs running."""
    scopes = [f"{scope}!user={name}" for scope in ("list:users", "read:users:activity", "servers")]
    made = await admin.call("POST", "/hub/api/users/admin/tokens", "/hub/", json={"scopes": scopes})
    return made["token"]


@contextmanager
def hub_culler(lab: Lab, token: str, *options: str) -> Iterator[None]:
    """JupyterHub's idle culler, as administrators run it."""
    command = [sys.executable, "-P", "-m", "jupyterhub_idle_culler", "--cull-every=1", *options]
    environ = {**os.environ, "JUPYTERHUB_API_TOKEN": token}
    process = subprocess.Popen([*command, f"--url={lab.cluster.url}/hub/api"], env=environ)
    try:
        yield
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(WITHIN_S)


async def server_runs(visitor: Visitor) -> bool:
    return "" in (await visitor.call("GET", f"/hub/api/users/{visitor.name}", "/hub/"))["servers"]


@pytest.mark.full("a minute of idleness; the gate has the ends of a kernel that cullers bring about")
async def test_cullers_take_neither_kernel_nor_server_while_a_cell_runs(
    lab: Lab, admin: Visitor, hedy: Visitor, tmp_path: Path
) -> None:
    """The page is closed and the cell says nothing; the culler of kernels takes even busy ones."""
    harsh = {"cull_idle_timeout": 12, "cull_interval": 1, "cull_busy": True, "cull_connected": True}
    often = {"hub_activity_interval": 1}
    token = await culler_token(admin, "hedy")
    async with settings(lab, hedy, MappingKernelManager=harsh, JupyterHubSingleUser=often):
        async with running(hedy, tmp_path / "go", "--plain") as case:
            case.kernel.close()
            kernel = processes_of("hedy", "ipykernel_launcher")[0].pid
            with hub_culler(lab, token, "--timeout=12"):
                await asyncio.sleep(16)
                assert psutil.pid_exists(kernel), "culled while its cell ran"
                assert await server_runs(hedy), "culled while its cell ran"
                case.go.touch()
                await case.wait_for("succeeded")
                async with asyncio.timeout(WITHIN_S):
                    while await server_runs(hedy):
                        await asyncio.sleep(0.5)
        await hedy.start_server()
        assert await answer_of(hedy, case.job) == "42"


@ALSO
async def test_a_server_that_is_culled_for_its_age_leaves_the_job_alone(
    lab: Lab, admin: Visitor, hedy: Visitor, tmp_path: Path
) -> None:
    token = await culler_token(admin, "hedy")
    async with running(hedy, tmp_path / "go") as case:
        with hub_culler(lab, token, "--timeout=3600", "--max-age=1"):
            async with asyncio.timeout(WITHIN_S):
                while processes_of("hedy", "ipykernel_launcher"):
                    await asyncio.sleep(0.2)
        await case.succeeds()
    await hedy.start_server()
    assert await answer_of(hedy, case.job) == "42"
