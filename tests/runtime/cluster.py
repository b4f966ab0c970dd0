"""Real agents of a task service, and cells that run on them."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from minicluster.capture.payload import CellPayload, LeftBehind
from minicluster.pickling import pickling
from minicluster.results.result_file import ResultFile
from minicluster.train.snapshots.store import memory_folder
from minicluster.wire import JobError, RankState, Record, RunOrder, SnapshotRef, StopMode
from minicluster.wire.serving.replicas import ReplicaOf
from minicluster.wire.sweeps.trials import TrialRef
from minicluster.wire.training.framework import Framework
from minicluster_hub.jobs.root_cause import root_cause

from ..patience import eventually
from .task_service import Attempt, Task, TaskService

FILENAME = "<cell 1>"


class Run:
    """One cell that runs on some agents."""

    def __init__(self, cluster: Cluster, attempt: Attempt) -> None:
        self.cluster = cluster
        self.attempt = attempt

    async def started(self) -> None:
        """Wait until each rank has printed a whole line; its newline is written separately."""
        ranks = range(self.attempt.world_size)
        await self.cluster.service.until(lambda: all("\n" in self.attempt.text(rank) for rank in ranks))

    async def stop(self, mode: StopMode = StopMode.INTERRUPT) -> None:
        for task in self.attempt.tasks:
            await self.cluster.service.order(task, task.orders.run, mode)

    async def over(self, limit_s: float = 60.0) -> Attempt:
        """Wait until the attempt has ended on all agents."""
        await self.cluster.service.until(lambda: self.attempt.cleared, limit_s)
        return self.attempt

    async def result(self) -> dict[str, Any]:
        """Return a successful cell's names, and its value as `_`."""
        attempt = await self.over()
        assert attempt.succeeded, self.errors()
        assert attempt.result
        body, _ = self._result_file().open({}, None, {})
        return body["names"] | body["value"]

    def left_behind(self) -> tuple[LeftBehind, ...]:
        """Return the objects that were left behind on rank 0."""
        return self._result_file().left_behind()

    def notes(self) -> tuple[str, ...]:
        """Return the ranks' notes for the notebook."""
        return self._result_file().notes()

    def _result_file(self) -> ResultFile:
        assert self.attempt.result
        return ResultFile(io.BytesIO(self.cluster.service.blobs[self.attempt.result.sha256]))

    def errors(self) -> dict[int, JobError]:
        return {number: rank.error for number, rank in self.attempt.ranks.items() if rank.error}

    async def culprit(self) -> JobError:
        """Return the error that the job service selects as the cause, once the attempt has ended.

        It need not be the first: a rank with a broken connection may report before the rank that ended.
        """
        await self.over()
        error = root_cause(SimpleNamespace(error=error) for error in self.errors().values())
        assert error is not None
        return error

    def records(self, stream: str = "records") -> list[Record]:
        lines = bytes(self.attempt.streams.get(stream, b"")).splitlines()
        return [Record.model_validate_json(line) for line in lines]


class Cluster:
    """Some agents, one per virtual node, until the test closes them."""

    def __init__(self, service: TaskService, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self.service = service
        self._environ = environ or {}
        self.folder = folder
        self.agents: list[subprocess.Popen[bytes]] = []
        self.tasks: list[Task] = []
        self._attempts = itertools.count(1)

    async def start(self, count: int) -> None:
        for _ in range(count):
            self.start_agent()
        await self.service.until(lambda: all(task.report.ready for task in self.tasks))

    def start_agent(self) -> None:
        number = len(self.agents)
        task = Task(token=f"secret-{number}")
        scratch = self.folder / f"task-{number}"
        scratch.mkdir(parents=True)
        (scratch / "token").write_text(task.token)
        environ = {
            **os.environ,
            **self._environ,
            "MINICLUSTER_SERVICE_URL": self.service.url,
            "MINICLUSTER_TOKEN_FILE": str(scratch / "token"),
            "MINICLUSTER_TASK": self.label(number),
            "MINICLUSTER_SCRATCH": str(scratch),
            "MINICLUSTER_NODE": f"node-{number}",
        }
        self.service.tasks[task.token] = task
        self.tasks.append(task)
        command = [sys.executable, "-m", "minicluster.runtime.agent"]
        with (scratch / "agent.log").open("wb") as log:
            agent = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
        self.agents.append(agent)

    def label(self, number: int) -> str:
        return f"{self.folder.name}-{os.getpid()}-{number}"

    async def run(
        self,
        source: str,
        *,
        nodes: int = 3,
        ranks_per_node: int | tuple[int, ...] = 1,
        env: dict[str, str] | None = None,
        names: dict[str, Any] | None = None,
        lose_payload: bool = False,
        job_id: int | None = None,
        snapshot: SnapshotRef | None = None,
        stall_timeout_s: float = 0.0,
        bundle: bytes | None = None,
        seed: int | None = None,
        trial: TrialRef | None = None,
        comm: str | None = None,
        balance: bool = False,
        framework: Framework = Framework.TORCH,
        serve: ReplicaOf | None = None,
        serve_secret: str = "",
        **payload: Any,
    ) -> Run:
        """Order a cell on the first `nodes` agents, as a new job or a new attempt of `job_id`."""
        pickled = pickling.dumps(names, {}, "The names") if names else b""
        blob = CellPayload(textwrap.dedent(source).strip(), FILENAME, pickled, **payload).to_bytes()
        sha256 = hashlib.sha256(blob).hexdigest()
        if not lose_payload:
            self.service.blobs[sha256] = blob
        tasks = self.tasks[:nodes]
        each = ranks_per_node if isinstance(ranks_per_node, tuple) else (ranks_per_node,) * nodes
        attempt = Attempt(next(self._attempts), sum(each), tasks)
        self.service.attempts[attempt.id] = attempt
        for index, task in enumerate(tasks):
            order = RunOrder(
                attempt=attempt.id,
                job_id=job_id or attempt.id,
                snapshot=snapshot,
                payload_sha256=sha256,
                first_rank=sum(each[:index]),
                local_world_size=each[index],
                world_size=attempt.world_size,
                group_rank=index,
                group_world_size=nodes,
                master_addr=tasks[0].report.address,
                master_port=tasks[0].report.store_port or 0,
                env=env or {},
                quiet_after_s=stall_timeout_s,
                bundle_sha256=bundle and self.service.keep_blob(bundle),
                seed=seed,
                trial=trial,
                comm=comm,
                balance=balance,
                framework=framework,
                serve=serve,
                serve_secret=serve_secret,
            )
            await self.service.order(task, order)
        return Run(self, attempt)

    def processes(self, number: int) -> list[int]:
        """Return all running processes with an agent's label."""
        return list(labelled(self.label(number)))

    async def close(self) -> None:
        """End the agents, and check that nothing of them is left."""
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            await eventually(lambda agent=agent: agent.poll() is not None)
        left = {number: self.processes(number) for number in range(len(self.agents))}
        assert not any(left.values()), f"processes left: {left}"
        for number, agent in enumerate(self.agents):
            memory = memory_folder({"MINICLUSTER_TASK": self.label(number)})
            assert memory is not None
            # A killed agent's folder is removed by the engine, which these tests lack.
            assert agent.returncode == -signal.SIGKILL or not memory.exists(), f"{memory} is left"
            shutil.rmtree(memory, ignore_errors=True)

    async def check_idle(self) -> None:
        """Check that each agent has only its zygote and a store."""
        for number, agent in enumerate(self.agents):
            assert agent.poll() is None, (self.folder / f"task-{number}" / "agent.log").read_text()
            try:
                await eventually(lambda number=number: len(self.processes(number)) == 3)
            except TimeoutError:
                raise AssertionError(
                    f"agent {number} has {describe_processes(self.processes(number))}"
                ) from None


def labelled(label: str) -> Iterator[int]:
    mark = f"MINICLUSTER_TASK={label}\0".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:  # The process has ended or is not ours.
            continue


def describe_processes(pids: list[int]) -> list[str]:
    """Describe processes for a failure message."""
    return [str(psutil.Process(pid)) for pid in pids if psutil.pid_exists(pid)]


def json_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


__all__ = ["FILENAME", "Cluster", "RankState", "Run", "json_lines", "labelled"]
