"""One local rank, as the agent sees it: its process, its pipes, its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from minicluster.runtime import processes
from minicluster.runtime.agent import task_limits
from minicluster.runtime.agent.errors import RankEnd, failure_of, note_of
from minicluster.runtime.agent.streams import LineSplitter, Pump, Spool
from minicluster.runtime.agent.trials import AnswerPipe, TrialRequests
from minicluster.runtime.agent.zygote_client import ForkedChild, ZygoteClient
from minicluster.runtime.diagnosis import requests, stacks
from minicluster.runtime.paths import AttemptPaths
from minicluster.wire import ErrorKind, JobError, RankReport, RankStack, RankState, StackStatus
from minicluster.wire.serving.replicas import ReplicaState
from minicluster.wire.sessions import CellEnd

EXIT_WAIT_S = 10.0
"""How long a rank may take to leave after its cell has ended."""
FAILED_EXIT_WAIT_S = 2.0
"""The same after an error: the other ranks and the notebook wait for it."""


class LocalRank:
    """Follows one rank from its fork to its end. `failure` is there as soon as it is known."""

    def __init__(
        self,
        rank: int,
        node: str,
        paths: AttemptPaths,
        records: Spool,
        changed: Callable[[], None],
        output_came: Callable[[], None],
        trial: TrialRequests,
        compiles: Callable[[str], None],
    ) -> None:
        self.rank = rank
        self.output = Spool(f"rank-{rank}", paths.spool(f"rank-{rank}"))
        self.displays = Spool(f"display-{rank}", paths.spool(f"display-{rank}"))
        self.failing = asyncio.Event()
        self.finished = asyncio.Event()
        self.left = asyncio.Event()
        self.end: RankEnd | None = None
        self.failure: JobError | None = None
        self.cells: asyncio.Queue[tuple[int, CellEnd]] = asyncio.Queue()
        self.replica: ReplicaState | None = None
        self.output_bytes = 0
        self.idle = False
        self.waits_for = ""
        self.no_progress_s = 0.0
        self._node = node
        self._paths = paths
        self._changed = changed
        self._output_came = output_came
        self._output = Pump(lambda data: self._keep(self.output, data))
        self._records = Pump(LineSplitter(lambda data: self._keep(records, data)).feed)
        self._control = Pump(LineSplitter(self._receive).feed)
        self._answers = AnswerPipe()
        self._trial = trial
        self._compiles = compiles
        self._child: ForkedChild | None = None
        self._because = ""
        self._early: signal.Signals | None = None
        self._asked_to_end_at: int | None = None

    @property
    def note(self) -> str:
        return note_of(self.end) if self.end else ""

    @property
    def succeeded(self) -> bool:
        return self.end is not None and self.failure is None

    @property
    def ended_by_itself(self) -> bool:
        """Whether it came to its end without a signal: nothing that it wrote is cut."""
        end = self.end
        return end is not None and not end.ended_because and not os.WIFSIGNALED(end.status)

    @property
    def ending(self) -> str:
        """Say that the rank is through with the cell, and waits for what it began."""
        waits = self.pid is not None and self.waits_for
        return f"The cell is over on rank {self.rank}, which waits for {self.waits_for}." if waits else ""

    @property
    def pid(self) -> int | None:
        """The rank's process while its cell runs."""
        child = self._child
        return None if child is None or child.ended.is_set() or self.leaving else child.pid

    @property
    def process_id(self) -> int | None:
        return self._child and self._child.pid

    async def run(self, zygote: ZygoteClient, local_rank: int) -> None:
        """Have the rank forked and follow it to its end."""
        kills_before = task_limits.oom_kills()
        pumps = (self._output, self._records, self._control)
        order = {"kind": "rank", "folder": str(self._paths.folder), "local_rank": local_rank}
        name = f"{self._paths.folder.name}-rank-{self.rank}"
        fds = [*(pump.write_fd for pump in pumps), self._answers.read_fd]
        self._child = child = zygote.fork(name, order, fds)
        for pipe in (*pumps, self._answers):
            pipe.start()
        await child.made.wait()
        if self._early:
            self.send(self._early, self._because)
        self._changed()
        await _either(child.ended, self.left)
        self.drain()
        self._conclude(child, task_limits.oom_kills() - kills_before)

    def send(self, number: signal.Signals, because: str) -> None:
        """Signal the rank and what it started, unless it is gone."""
        if self._child and self._child.ended.is_set():
            return
        self._because = self._because or because
        if number is signal.SIGTERM and self._asked_to_end_at is None:
            self._asked_to_end_at = stacks.size(self._paths.stacks(self.rank))
        if self._child and self._child.pid:
            processes.signal_group(self._child.pid, number)
        else:
            self._early = number

    @property
    def leaving(self) -> bool:
        """Whether the rank is on its own way out."""
        return self.finished.is_set() or self.failing.is_set()

    def drain(self) -> None:
        for pump in (self._output, self._records, self._control):
            pump.drain()
        self.displays.grown()

    def close(self) -> None:
        for pipe in (self._output, self._records, self._control, self._answers):
            pipe.close()

    def let_leave(self) -> None:
        """Tell the rank that its trial is pruned."""
        self._answers.send({"leave": True})

    def profile(self, steps: int) -> None:
        """Have the rank profile its next steps, if its cell runs."""
        requests.send(self._paths.requests(self.rank), requests.PROFILE, steps)

    def refuse(self, message: str, hint: str = "") -> None:
        """Say why the rank was never started."""
        self.failure = JobError(
            kind=ErrorKind.START, message=message, hint=hint, rank=self.rank, node=self._node, at=time.time()
        )

    def fail(self, error: JobError) -> None:
        """Say why the rank is ended, unless it has come to its end already."""
        if self.end is None and self.failure is None:
            self.failure = error.model_copy(update={"rank": self.rank})

    def report(self, *, hold_success: bool) -> RankReport:
        """Say how the rank stands. A success can be held until its output and result are delivered."""
        if self.failure or (self.end and not hold_success):
            code = self.end.exit_code if self.end else None
            code = 0 if self.end and not self.failure else code
            return RankReport(rank=self.rank, state=RankState.EXITED, exit_code=code, error=self.failure)
        started = self._child is not None and self._child.pid is not None
        return RankReport(rank=self.rank, state=RankState.STARTED if started else RankState.PENDING)

    def _keep(self, spool: Spool, data: bytes) -> None:
        self.output_bytes += len(data)
        spool.write(data)
        # A mark in the output tells that the rank displayed something.
        self.displays.grown()
        self._output_came()

    def _receive(self, lines: bytes) -> None:
        for message in map(json.loads, lines.splitlines()):
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if message["event"] == "waiting":
            self.waits_for = str(message["what"])[:200]
            self._changed()
            return
        if message["event"] == "ask":
            self._trial.ask(message, self._answers.send)
            return
        if message["event"] == "compiles":
            self._compiles(message["environment"])
            return
        if message["event"] == "replica":
            self.replica = ReplicaState(port=message["port"], ready=message["ready"])
            self._changed()
            return
        if message["event"] == "cell":
            self._cell_ended(message)
            return
        if message["event"] == "left":
            # All is done and flushed; giving back its memory may take the process longer than all the rest.
            if message["exit_code"] == 0 and self.finished.is_set():
                self.left.set()
            return
        if message["event"] == "finished":
            self.finished.set()
            wait_s = EXIT_WAIT_S
        else:
            self.failing.set()
            wait_s = FAILED_EXIT_WAIT_S
        because = f"it was still there {wait_s:.0f} s after the cell's end"
        asyncio.get_running_loop().call_later(wait_s, self.send, signal.SIGKILL, because)

    def run_cell(self, command: dict[str, Any]) -> None:
        """Have the rank of a session run a cell."""
        self.idle = False
        self._answers.send({"cell": command})

    def leave_cell(self) -> None:
        """Have the rank of a session close its connections: others wait for it in vain."""
        self._answers.send({"leave": True})

    def end_session(self) -> None:
        """Have the rank of a session end once it has run the cells that it was given."""
        self._answers.send({"end": True})

    def _cell_ended(self, message: dict[str, Any]) -> None:
        # What the cell printed was written before this line.
        for pump in (self._output, self._records):
            pump.drain()
        self.displays.grown()
        self.idle = True
        account = message["account"]
        error = None
        if account is not None:
            error = failure_of(RankEnd(self.rank, self._node, status=1 << 8, at=time.time(), account=account))
        end = CellEnd(
            rank=self.rank,
            error=error,
            interrupted=message["interrupted"],
            collectives=message["collectives"],
            broke_step=message["broke_step"],
        )
        self.cells.put_nowait((int(message["number"]), end))

    def _last_stack(self, account: dict[str, Any] | None) -> RankStack | None:
        """Return where the rank was when it failed, or was asked to end."""
        cell = stacks.CellText.read(self._paths.cell)
        frames = stacks.of_account(account, cell)
        if not frames and self._asked_to_end_at is not None:
            frames = stacks.answer(self._paths.stacks(self.rank), self._asked_to_end_at, cell)
        if not frames and not self.waits_for:
            return None
        where = {"quiet_s": self.no_progress_s, "ending": self.waits_for, "frames": frames}
        return RankStack(rank=self.rank, sight=StackStatus.SEEN, **where)

    def _conclude(self, child: ForkedChild, memory_kills: int) -> None:
        if child.status is None and not self.left.is_set():
            self.refuse(f"Rank {self.rank} could not be started on {self._node}: {child.refusal}.")
        else:
            account: dict[str, Any] | None = None
            with suppress(OSError, ValueError):  # Torch elastic's error file may be missing, or cut.
                account = json.loads(self._paths.error_file(self.rank).read_bytes())
            self.end = RankEnd(
                rank=self.rank,
                node=self._node,
                status=child.status or 0,
                at=time.time(),
                finished=self.finished.is_set(),
                account=account,
                ended_because=self._because,
                memory_kills=memory_kills,
                memory_limit_bytes=task_limits.limit_bytes(),
            )
            failure = self.failure or failure_of(self.end)
            self.failure = failure and failure.model_copy(update={"stack": self._last_stack(account)})
        if self.failure:
            self.failing.set()
        self._changed()


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
