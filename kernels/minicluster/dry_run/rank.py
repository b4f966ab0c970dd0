"""A virtual rank: runs the cell as a rank does, but alone, and ends it after its first steps."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch

from minicluster.capture.payload import CellPayload
from minicluster.dry_run.comms import ModelsCommunication
from minicluster.dry_run.group import Broadcasts, VirtualGroup, VirtualGroups
from minicluster.dry_run.measured import CPU, Ended, RankFindings
from minicluster.dry_run.memory import LiveTensors
from minicluster.dry_run.steps import StepWatch
from minicluster.dry_run.task import DryRunTask
from minicluster.runtime.paths import write_whole
from minicluster.runtime.rank import forked
from minicluster.runtime.rank.rank import Rank, RankPipes
from minicluster.train.snapshots.store import FOLDERS


class _OverTime(BaseException):
    """The rank's time is over."""


class VirtualRank(Rank):
    """One rank of a dry run. traced: its tensors are counted. timing_s: see StepWatch."""

    def __init__(self, task: DryRunTask, turn: int, pipes: RankPipes) -> None:
        rank, paths = task.ranks[turn], task.paths
        super().__init__(paths.folder, rank % task.order.local_world_size, pipes, task.order_of(rank))
        self._task, self._turn = task, turn
        self._plan = task.plan_of(turn)
        self._traced = LiveTensors() if self._plan.traced else None
        self._broadcasts = Broadcasts(paths.folder / "broadcasts", rank)
        self._filename = ""
        self._virtual: VirtualGroup | None = None
        self._watch: StepWatch | None = None
        self._communication: ModelsCommunication | None = None

    def run(self) -> int:
        try:
            signal.signal(signal.SIGALRM, _raise_over_time)
            self._prepare()
            self._watch = StepWatch(
                self._virtual,
                self._followed(),
                self._made_first_step,
                self._made_all_steps,
                self._traced,
                self._plan.timing_s,
            )
            payload = CellPayload.from_bytes(self.paths.payload.read_bytes())
            self._load(payload)
            self._watch.install()
            signal.setitimer(signal.ITIMER_REAL, self._task.limit_s)
            self._execute_traced(payload)
            self._end(Ended.CELL)
        except _OverTime as over:
            made_steps = self._watch is not None and self._watch.steps > 0
            self._end(Ended.STEPS if made_steps else Ended.LIMIT, line=_line_in(over, self._filename))
        except BaseException as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - the notebook shows the error once
            return self._failed(error)
        return 0

    def _execute_traced(self, payload: CellPayload) -> None:
        self._filename = payload.filename
        if self._traced is None:
            self._execute(payload)
            return
        self._traced.see_all()
        with self._traced:
            self._execute(payload)

    def _make_group(self, backend: str) -> None:
        os.environ[FOLDERS] = str(self.paths.folder / "snapshots")
        groups = VirtualGroups(backend.split(",")[0].rpartition(":")[2], self._broadcasts)
        groups.make()
        self._virtual = groups.group

    def _follow_comm(self) -> None:
        self._communication = ModelsCommunication(self.order.comm)

    def _followed(self) -> ModelsCommunication:
        assert self._communication is not None  # noqa: S101 - _prepare has made it
        return self._communication

    def _made_first_step(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._task.more_steps_s)

    def _made_all_steps(self) -> None:
        self._end(Ended.STEPS)

    def _end(self, ended: Ended, line: int | None = None) -> NoReturn:
        """Write what was found, and leave: no code of the cell runs after that."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        if os.getpid() == self.pid:
            self._broadcasts.save()
            findings = self._findings(ended, line)
            write_whole(self._task.findings(self._turn), findings.model_dump_json().encode())
        os._exit(0)

    def _findings(self, ended: Ended, line: int | None) -> RankFindings:
        watch = self._watch
        assert watch is not None  # noqa: S101 - it was made before the cell began
        traced = self._traced.traced if self._traced is not None else None
        return RankFindings(
            rank=self.rank,
            world_size=self.order.world_size,
            ended=ended,
            steps=watch.steps,
            first_step_s=watch.first_step_s,
            times={name: tuple(steps) for name, steps in watch.times.items()},
            device=_device(),
            threads=torch.get_num_threads(),
            sizes=watch.sizes,
            growth_bytes=watch.growth_bytes or watch.memory.growth_bytes,
            base_bytes=watch.memory.base_bytes,
            traced=traced,
            epoch=watch.epoch,
            distributed=self._followed().distributed,
            own_hook=self._followed().own_hook,
            line=line,
        )


def _raise_over_time(*_: Any) -> None:
    raise _OverTime


def _line_in(error: BaseException, filename: str) -> int | None:
    """Return the line of the cell that was running."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == filename), None)


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else CPU


def main(parent_pid: int, task: DryRunTask, turn: int, output_fd: int) -> NoReturn:
    """Run a virtual rank in a forked process, then end the process."""
    code = 1
    try:
        forked.detach_from_zygote(parent_pid)
        forked.take_streams(output_fd)
        null = os.open(os.devnull, os.O_RDWR)
        pipes = RankPipes(null, os.dup(null), os.dup(null), os.dup(null))
        code = VirtualRank(task, turn, pipes).run()
    finally:
        os._exit(code)
