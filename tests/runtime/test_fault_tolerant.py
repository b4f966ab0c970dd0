"""Fault-tolerant attempts on real agents: ranks are killed, frozen and added while the others train."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from minicluster import pickling
from minicluster.payload import CellPayload, ResultPayload
from minicluster.wire import RankState, RunOrder

from .cluster import FILENAME, Cluster
from .conftest import Start
from .task_service import Attempt, TaskService

pytest.importorskip("torchft")

TRAIN = """
import json
import os
import time
import torch
import minicluster as mc
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(mc.rank())
data = TensorDataset(torch.arange({size}), torch.randn({size}, 8, generator=torch.Generator().manual_seed(1)))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
model, optimizer, loader = mc.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
session = optimizer._session
story = open(f"{folder}/rank-{{os.environ['RANK']}}", "a", buffering=1)
start = 0
{begin}
for epoch in range(start, {epochs}):
    for index, x in loader:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        time.sleep({pause})
        loss.backward()
        here = dict(epoch=epoch, step=session.step, members=session.members, samples=index.tolist())
        story.write(json.dumps(dict(here, at=time.monotonic(), counted=False)) + "\\n")
        optimizer.step()
        if session.step > here["step"]:
            story.write(json.dumps(dict(here, at=time.monotonic(), counted=True)) + "\\n")
        {after}
total = sum(value.double().sum().item() for value in model.parameters())
print("total", repr(total))
"""


@dataclass(frozen=True)
class Took:
    """What a rank noted: before each try of a step, and again when the step counted."""

    rank: int
    epoch: int
    step: int
    members: tuple[int, ...]
    samples: tuple[int, ...]
    at: float
    counted: bool


class Lighthouse:
    """A lighthouse at an address that stays."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "minicluster.runtime.lighthouse", "--bind", self.address]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        self.process = self._start()


class Door:
    """Stands before a lighthouse; `cut` leaves the connections open, and nothing comes through any more."""

    def __init__(self) -> None:
        self.address = ""
        self._server: asyncio.Server | None = None
        self._target = ""
        self._pumps: set[asyncio.Task[None]] = set()

    async def open(self, target: str) -> None:
        self._target = target
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self, target: str) -> None:
        """Lead new connections to another lighthouse."""
        self._target = target
        for pump in self._pumps:
            pump.cancel()

    async def close(self) -> None:
        self.cut(self._target)
        if self._server:
            self._server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        for source, sink in ((reader, back), (there, writer)):
            pump = asyncio.create_task(_pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    sink.close()


class Live:
    """One fault-tolerant attempt on some agents, of which some come later."""

    def __init__(self, cluster: Cluster, lighthouse: Lighthouse) -> None:
        self.cluster = cluster
        self.lighthouse = lighthouse
        self.attempt = Attempt(1, 0, [])
        cluster.service.attempts[1] = self.attempt
        self.folder = cluster.folder
        self.address = lighthouse.address
        self._orders: list[RunOrder] = []
        self._sha256 = ""

    async def run(self, nodes: int, **values: Any) -> None:
        source = (
            textwrap.dedent(TRAIN)
            .strip()
            .format(
                **{"size": 240, "epochs": 3, "pause": 0.02, "folder": self.folder, "begin": "", "after": ""}
                | values
            )
        )
        blob = CellPayload(source, FILENAME, b"", pull=("total",)).to_bytes()
        self._sha256 = hashlib.sha256(blob).hexdigest()
        self.cluster.service.blobs[self._sha256] = blob
        for number in range(nodes):
            await self._order(number, nodes, joins=False, lead=number == 0)

    async def join(self) -> None:
        """Add an agent to the attempt that runs."""
        self.cluster.start_agent()
        task = self.cluster.tasks[-1]
        await self.cluster.service.until(lambda: task.report.ready)
        number = len(self.cluster.tasks) - 1
        await self._order(number, number + 1, joins=True, lead=False)

    async def lead(self, number: int) -> None:
        """Have another task bring the result."""
        for index, order in enumerate(self._orders):
            self._orders[index] = order = order.model_copy(update={"lead": index == number})
            await self.cluster.service.order(self.cluster.tasks[index], order)

    def lose(self, number: int) -> None:
        """Kill a task as a node's power failure does, and take it off the attempt."""
        task = self.cluster.tasks[number]
        task.over = True
        for pid in self.cluster.processes(number):
            os.kill(pid, signal.SIGKILL)
        self.attempt.tasks.remove(task)
        # As the engine does for an agent that was killed.
        shutil.rmtree(f"/dev/shm/minicluster-{self.cluster.label(number)}", ignore_errors=True)

    def took(self, rank: int) -> list[Took]:
        """Return a rank's notes, also of one that is dead: they are in a file."""
        path = self.folder / f"rank-{rank}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        notes = [json.loads(line) for line in lines if line.endswith("\n")]
        return [
            Took(rank, **note | {"members": tuple(note["members"]), "samples": tuple(note["samples"])})
            for note in notes
        ]

    async def until_step(self, rank: int, step: int) -> None:
        """Wait until a rank has taken so many steps."""
        async with asyncio.timeout(90):
            while not any(one.counted and one.step >= step for one in self.took(rank)):
                await asyncio.sleep(0.02)

    async def over(self) -> None:
        ranks = self.attempt.ranks
        numbers = [
            order.first_rank
            for order, task in zip(self._orders, self.cluster.tasks, strict=True)
            if task in self.attempt.tasks
        ]
        await self.cluster.service.until(
            lambda: all(n in ranks and ranks[n].state is RankState.EXITED for n in numbers), 90.0
        )
        assert not [ranks[number].error for number in numbers if ranks[number].error], ranks

    def result(self) -> float:
        assert self.attempt.result
        result = ResultPayload.from_bytes(self.cluster.service.blobs[self.attempt.result.sha256])
        return pickling.loads(result.names, {})["total"]

    def printed_total(self, rank: int) -> float:
        return float(self.attempt.text(rank).rpartition("total ")[2])

    async def _order(self, number: int, world_size: int, **more: Any) -> None:
        first = self.cluster.tasks[0].report
        order = RunOrder(
            attempt=1,
            job_id=1,
            payload_sha256=self._sha256,
            first_rank=number,
            local_world_size=1,
            world_size=world_size,
            group_rank=number,
            group_world_size=world_size,
            master_addr=first.address,
            master_port=first.store_port or 0,
            fault_tolerant=True,
            lighthouse=self.address,
            **more,
        )
        self._orders.append(order)
        self.attempt.tasks.append(self.cluster.tasks[number])
        await self.cluster.service.order(self.cluster.tasks[number], order)


@pytest_asyncio.fixture(loop_scope="session")
async def live(start: Start) -> AsyncIterator[Live]:
    lighthouse = Lighthouse()
    yield Live(await start(3, TaskService()), lighthouse)
    lighthouse.kill()


def now() -> float:
    return asyncio.get_running_loop().time()


def told(capsys: pytest.CaptureFixture[str], sentence: str) -> None:
    """Show a figure; how long something may take is no matter of a test."""
    with capsys.disabled():
        print(f"\n  {sentence}")


def next_step_s(steps: list[Took], since: float, members: tuple[int, ...]) -> float:
    """Return the time from an event to the end of the first step that these ranks took after it."""
    return min(one.at for one in steps if one.counted and one.at > since and one.members == members) - since


def longest_pause_s(steps: list[Took], since: float) -> float:
    """Return the longest time between two steps that counted, from an event on."""
    at = [since, *(one.at for one in steps if one.counted and one.at > since)]
    return max(later - earlier for earlier, later in itertools.pairwise(at))


def lost_steps(steps: list[Took]) -> int:
    return sum(not one.counted for one in steps) - sum(one.counted for one in steps)


def samples_of(steps: list[Took], epoch: int) -> list[int]:
    """Return the samples of the steps that counted, those too that a rank took which died right then."""
    counted = {(one.step, one.members) for one in steps if one.counted}
    tries = (one for one in steps if not one.counted and one.epoch == epoch)
    return [sample for one in tries if (one.step, one.members) in counted for sample in one.samples]


async def test_survivors_step_on_when_a_rank_is_killed(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    await live.run(3, epochs=6)
    await live.until_step(1, 20)
    at = now()
    live.lose(0)
    await live.lead(1)
    await live.over()
    for rank in (1, 2):
        steps = live.took(rank)
        after_s, lost = next_step_s(steps, at, (1, 2)), lost_steps(steps)
        told(capsys, f"rank {rank}: next step {after_s:.2f} s after the kill, {lost} steps lost")
        assert lost <= 1
    assert "rank 0 is gone: 2 go on" in live.attempt.text(1)
    assert isinstance(live.result(), float)


async def test_each_sample_of_an_epoch_is_seen_once(live: Live) -> None:
    await live.run(3, epochs=2, pause=0.03)
    await live.until_step(1, 8)
    live.lose(2)
    await live.over()
    everything = [one for rank in range(3) for one in live.took(rank)]
    for epoch in range(2):
        samples = samples_of(everything, epoch)
        assert set(samples) == set(range(240))
        assert len(samples) <= 240 + 1, (
            "only the last step may repeat a sample, where the ranks' parts differ"
        )


async def test_a_new_rank_joins_live(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    await live.run(3, epochs=30)
    await live.until_step(0, 10)
    live.lose(1)
    await live.join()
    await live.until_step(3, 1)
    await live.lead(3)
    await live.over()
    joined = next(one for one in live.took(3) if one.counted)
    pause_s = longest_pause_s(live.took(0), joined.at - 1.0)
    told(capsys, f"joined at step {joined.step}; a survivor's longest pause then: {pause_s:.2f} s")
    assert joined.step > 10
    assert joined.members == (0, 2, 3)
    assert "rank 3 has joined: 3 go on" in live.attempt.text(0)
    ends = {rank: [one for one in live.took(rank) if one.counted][-1] for rank in (0, 2, 3)}
    assert len({(one.epoch, one.step) for one in ends.values()}) == 1
    # All have the same model: the new one's result is that of the others.
    assert live.result() == live.printed_total(0)


RESUME = """
first = mc.resume(model, optimizer, loader)
start = loader.epoch
print("first", first, start, flush=True)
"""


async def test_a_rank_that_joins_resumes_where_the_others_are(live: Live) -> None:
    keep = "mc.checkpoint(model, optimizer, loader, step=session.step, every=5)"
    await live.run(3, epochs=30, begin=RESUME, after=keep)
    await live.until_step(0, 30)
    live.lose(1)
    await live.join()
    await live.until_step(3, 1)
    await live.over()
    first, start = map(int, live.attempt.text(3).split("first ")[1].split()[:2])
    steps = [one for one in live.took(3) if one.counted]
    assert first == steps[0].step
    assert start == steps[0].epoch
    assert start > 0
    assert steps[-1].epoch == live.took(0)[-1].epoch == 29


async def test_survivors_step_on_when_a_node_freezes(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    await live.run(3, epochs=12)
    await live.until_step(1, 20)
    at = now()
    frozen = live.cluster.processes(2)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(60):
        while not any(one.counted and one.members == (0, 1) for one in live.took(0)):
            await asyncio.sleep(0.02)
    told(capsys, f"next step {next_step_s(live.took(0), at, (0, 1)):.2f} s after the freeze")
    live.lose(2)
    await live.over()
    assert lost_steps(live.took(0)) <= 1


async def test_a_lighthouse_that_was_killed_is_found_again(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    await live.run(3, epochs=8)
    await live.until_step(1, 20)
    live.lighthouse.kill()
    at = now()
    await asyncio.to_thread(live.lighthouse.start_again)
    await live.over()
    steps = live.took(0)
    told(capsys, f"{longest_pause_s(steps, at):.2f} s without a step while the lighthouse was away")
    assert {one.members for one in steps} == {(0, 1, 2)}


async def test_a_lighthouse_that_was_cut_off_is_found_again_elsewhere(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    door, other = Door(), Lighthouse()
    await door.open(live.lighthouse.address)
    live.address = door.address
    await live.run(3, epochs=8)
    await live.until_step(1, 20)
    at = now()
    door.cut(other.address)
    await live.over()
    await door.close()
    other.kill()
    steps = live.took(0)
    told(capsys, f"{longest_pause_s(steps, at):.2f} s without a step after the lighthouse was cut off")
    assert steps[-1].members == (0, 1, 2)


async def test_a_rank_and_the_lighthouse_die_together(live: Live) -> None:
    await live.run(3, epochs=6)
    await live.until_step(1, 20)
    live.lighthouse.kill()
    live.lose(2)
    await asyncio.to_thread(live.lighthouse.start_again)
    await live.over()
    assert live.took(0)[-1].members == (0, 1)
