"""A fault-tolerant attempt on real agents, controlled by tests, and the ranks' records of their steps."""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from minicluster.capture.payload import CellPayload
from minicluster.results.result_file import ResultFile
from minicluster.wire import RankState, RunOrder

from .cluster import FILENAME, Cluster
from .task_service import Attempt

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
steps_file = open(f"{folder}/rank-{{os.environ['RANK']}}", "a", buffering=1)
start = 0
{begin}
for epoch in range(start, {epochs}):
    for index, x in loader:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        time.sleep({pause})
        {before}
        begun = dict(epoch=epoch, step=session.step, samples=index.tolist(), counted=False)
        steps_file.write(json.dumps(dict(begun, members=[], at=time.monotonic())) + "\\n")
        loss.backward()
        here = dict(epoch=epoch, step=session.step, members=session.members, samples=index.tolist())
        steps_file.write(json.dumps(dict(here, at=time.monotonic(), counted=False)) + "\\n")
        optimizer.step()
        if session.step > here["step"]:
            steps_file.write(json.dumps(dict(here, at=time.monotonic(), counted=True)) + "\\n")
        {after}
mc.average_weights()
total = sum(value.double().sum().item() for value in model.parameters())
print("total", repr(total))
"""


@dataclass(frozen=True)
class Took:
    """A rank's record, written before each try of a step, and again when the step counted.

    members: the ranks of the step; empty if the rank died before it knew them.
    """

    rank: int
    epoch: int
    step: int
    members: tuple[int, ...]
    samples: tuple[int, ...]
    at: float
    counted: bool


class Lighthouse:
    """A lighthouse with a fixed address."""

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


class Live:
    """One fault-tolerant attempt; further agents may join later."""

    def __init__(self, cluster: Cluster, lighthouse: Lighthouse) -> None:
        self.cluster = cluster
        self.lighthouse = lighthouse
        self.attempt = Attempt(1, 0, [])
        cluster.service.attempts[1] = self.attempt
        self.folder = cluster.folder
        self.address = lighthouse.address
        self._orders: list[RunOrder] = []
        self._sha256 = ""
        self._comm: str | None = None

    async def run(self, nodes: int, comm: str | None = None, **values: Any) -> None:
        self._comm = comm
        source = (
            textwrap.dedent(TRAIN)
            .strip()
            .format(
                **{
                    "size": 240,
                    "epochs": 3,
                    "pause": 0.02,
                    "folder": self.folder,
                    "begin": "",
                    "before": "",
                    "after": "",
                }
                | values
            )
        )
        blob = CellPayload(source, FILENAME, b"", pull=("total",)).to_bytes()
        self._sha256 = hashlib.sha256(blob).hexdigest()
        self.cluster.service.blobs[self._sha256] = blob
        for number in range(nodes):
            await self._order(number, nodes, joins=False, lead=number == 0)

    async def join(self) -> None:
        """Add an agent to the running attempt."""
        self.cluster.start_agent()
        task = self.cluster.tasks[-1]
        await self.cluster.service.until(lambda: task.report.ready)
        number = len(self.cluster.tasks) - 1
        await self._order(number, number + 1, joins=True, lead=False)

    async def lead(self, number: int) -> None:
        """Make another task return the result."""
        for index, order in enumerate(self._orders):
            self._orders[index] = order = order.model_copy(update={"lead": index == number})
            await self.cluster.service.order(self.cluster.tasks[index], order)

    def lose(self, number: int) -> None:
        """Kill a task as in a power failure of its node, and remove it from the attempt."""
        task = self.cluster.tasks[number]
        task.over = True
        for pid in self.cluster.processes(number):
            with suppress(ProcessLookupError):  # The kernel ends them with their parent.
                os.kill(pid, signal.SIGKILL)
        self.attempt.tasks.remove(task)
        # The engine does this for a killed agent.
        shutil.rmtree(f"/dev/shm/minicluster-{self.cluster.label(number)}", ignore_errors=True)

    def took(self, rank: int) -> list[Took]:
        """Return a rank's records from their file, even if the rank is dead."""
        path = self.folder / f"rank-{rank}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        notes = [json.loads(line) for line in lines if line.endswith("\n")]
        # The record at the start of a try matters only if no other record follows.
        kept = [note for note in notes[:-1] if note["members"]] + notes[-1:]
        return [
            Took(rank, **note | {"members": tuple(note["members"]), "samples": tuple(note["samples"])})
            for note in kept
        ]

    async def until_step(self, rank: int, step: int) -> None:
        """Wait until a rank has reached this step."""
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
        file = io.BytesIO(self.cluster.service.blobs[self.attempt.result.sha256])
        return ResultFile(file).open({}, None, {})[0]["names"]["total"]

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
            comm=self._comm,
            **more,
        )
        self._orders.append(order)
        self.attempt.tasks.append(self.cluster.tasks[number])
        await self.cluster.service.order(self.cluster.tasks[number], order)


def now() -> float:
    return asyncio.get_running_loop().time()


def show(capsys: pytest.CaptureFixture[str], sentence: str) -> None:
    """Print a measured time, which tests do not limit."""
    with capsys.disabled():
        print(f"\n  {sentence}")


def next_step_s(steps: list[Took], since: float, members: tuple[int, ...]) -> float:
    """Return the time from `since` to the end of these ranks' first step after it."""
    return min(one.at for one in steps if one.counted and one.at > since and one.members == members) - since


def longest_pause_s(steps: list[Took], since: float) -> float:
    """Return the longest time between two steps that counted, after `since`."""
    at = [since, *(one.at for one in steps if one.counted and one.at > since)]
    return max(later - earlier for earlier, later in itertools.pairwise(at))


def lost_steps(steps: list[Took]) -> int:
    return sum(not one.counted for one in steps) - sum(one.counted for one in steps)


def samples_of(steps: list[Took], epoch: int) -> list[int]:
    """Return the samples of all steps that counted, including those of a rank that died in the step."""
    counted = {(one.step, one.members) for one in steps if one.counted}

    def did_count(one: Took) -> bool:
        if one.members:
            return (one.step, one.members) in counted
        return any(one.step == step and one.rank in members for step, members in counted)

    tries = (one for one in steps if not one.counted and one.epoch == epoch)
    return [sample for one in tries if did_count(one) for sample in one.samples]
