"""One attempt on this node, from the order to the last acknowledged byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from minicluster.machine.rank_use import RankUse
from minicluster.publishing.pip import PipFailed
from minicluster.runtime import processes
from minicluster.runtime.agent.client import AgentClient, ServiceRefused
from minicluster.runtime.agent.errors import with_first_errors
from minicluster.runtime.agent.files.artifacts import OutputUploads
from minicluster.runtime.agent.files.compile_cache import CompileCache
from minicluster.runtime.agent.files.snapshots import SnapshotTransfers
from minicluster.runtime.agent.part_downloads import PartDownloads
from minicluster.runtime.agent.preparation import AttemptImpossible, Preparation, lost_files
from minicluster.runtime.agent.ranks import LocalRank
from minicluster.runtime.agent.result import ResultUpload
from minicluster.runtime.agent.session import SessionFeed
from minicluster.runtime.agent.streams import CHUNK_BYTES, Spool
from minicluster.runtime.agent.trials import TrialRequests
from minicluster.runtime.agent.zygote_client import ZygoteClient
from minicluster.runtime.diagnosis.connectivity import ConnectivityCheck
from minicluster.runtime.diagnosis.watchdog import Watchdog
from minicluster.runtime.node.gpus import GpuMemory
from minicluster.runtime.paths import AttemptPaths
from minicluster.runtime.settings import AgentSettings
from minicluster.wire import (
    RESULT_LEFT,
    ErrorKind,
    JobError,
    ProfileOrder,
    RankReport,
    RunOrder,
    StopMode,
    StreamChunk,
    TaskReport,
    few_notes,
)
from minicluster.wire.serving.replicas import ReplicaState

REPORT_BYTES = 1 << 20
_LAST_SNAPSHOT_S = 5.0
"""For the last snapshot of an attempt that failed: shorter than the service waits for its end."""
_FIRST_REPORT_S = 0.1
"""How long clearing up waits for it at most, when there is nothing to end."""
_BECAUSE = {
    StopMode.INTERRUPT: "the job was stopped",
    StopMode.ABORT: "the job's attempt was ended",
    StopMode.YIELD: "the job made room",
    StopMode.KILL: "the job goes on without a lost node",
}


@dataclass(frozen=True)
class AttemptContext:
    """What an attempt gets from its agent.

    end_store: called at the attempt's end, with whether it used the TCPStore of this task.
    surviving: the processes below the agent that outlive an attempt.
    """

    settings: AgentSettings
    client: AgentClient
    zygote: ZygoteClient
    changed: Callable[[], None]
    output_came: Callable[[], None]
    end_store: Callable[[bool], None]
    surviving: Callable[[], Awaitable[set[int]]]
    snapshots: SnapshotTransfers
    outputs: OutputUploads
    compiled: CompileCache
    parts: PartDownloads


class Attempt:
    """The ranks of one attempt on this node, with their streams and their result."""

    def __init__(self, order: RunOrder, context: AttemptContext) -> None:
        self.order = order
        self.id = order.attempt
        self.delivered = False
        self.gone = asyncio.Event()
        self._context = context
        self._paths = AttemptPaths(context.settings.scratch / f"attempt-{order.attempt}")
        shutil.rmtree(self._paths.folder, ignore_errors=True)
        self._paths.folder.mkdir(parents=True)
        stream = "records" if order.group_rank == 0 else f"agent-{order.group_rank}"
        self._records = Spool(stream, self._paths.spool(stream))
        self._trial = TrialRequests(order.attempt, context.client)
        hooks = (context.changed, context.output_came, self._trial, self._compiles)
        self._ranks = [
            LocalRank(rank, context.settings.node, self._paths, self._records, *hooks)
            for rank in range(order.first_rank, order.first_rank + order.local_world_size)
        ]
        self.watchdog = Watchdog(self._ranks, self._paths, order.quiet_after_s, context.changed)
        self.result = ResultUpload(self._paths.result, context.client)
        self.cells = SessionFeed(
            order.attempt, self._ranks, self._paths, context.client, context.parts, self._output_sent
        )
        self.connectivity = ConnectivityCheck(order.peers, context.changed)
        self.use = RankUse(self._ranks)
        self._gpu_memory = GpuMemory()
        self._notes: list[str] = []
        self._mode: StopMode | None = None
        self._told_to_leave = False
        self._profile_id = 0
        self._preparing: asyncio.Task[None] | None = None
        self._escalation: asyncio.Task[None] | None = None
        self._acknowledged = asyncio.Event()
        self._late_result: asyncio.Task[None] | None = None

    # What the agent reports.

    @property
    def failed(self) -> bool:
        return any(rank.failure for rank in self._ranks)

    @property
    def unsent(self) -> int:
        return sum(spool.unsent for spool in self._spools())

    def rank_reports(self) -> tuple[RankReport, ...]:
        hold = not (self.delivered or self.failed or self._context.outputs.hurried)
        return with_first_errors([rank.report(hold_success=hold) for rank in self._ranks])

    def notes(self) -> tuple[str, ...]:
        of_ranks = [*(rank.note for rank in self._ranks), *(spool.lost for spool in self._spools())]
        of_files = (self._context.snapshots, self._context.outputs, self._context.compiled)
        of_uploads = (note for transfers in of_files for note in transfers.notes())
        return few_notes((*self._notes, *of_uploads, *filter(None, of_ranks)))

    def ending(self) -> tuple[str, ...]:
        return tuple(filter(None, (rank.ending for rank in self._ranks)))

    @property
    def replica(self) -> ReplicaState | None:
        """The replica of a model that runs here, as long as it does."""
        first = self._ranks[0]
        return first.replica if first.pid is not None else None

    def chunks(self) -> tuple[StreamChunk, ...]:
        """Return the next piece of each stream; streams of which the service holds the least come first."""
        waiting = sorted(self._spools(), key=lambda spool: spool.acknowledged)
        chunks = [chunk for spool in waiting if (chunk := spool.chunk())]
        return tuple(chunks[: REPORT_BYTES // CHUNK_BYTES])

    def acknowledge(self, sizes: dict[str, int]) -> None:
        for spool in self._spools():
            spool.acknowledge(sizes.get(spool.name, 0))
        self._acknowledged.set()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the attempt but what the next report says."""
        return self.delivered and self.gone.is_set() and not self.unsent and self._context.outputs.all_known

    def has_all(self, report: TaskReport) -> bool:
        """Tell whether a report that the service has was the last of this attempt."""
        now = (self.rank_reports(), self.result.info, self.notes())
        same = (report.ranks, report.result, report.notes) == now
        return self.delivered and self.gone.is_set() and same and not self.unsent

    # What happens.

    async def run(self) -> None:
        """Run the ranks to their end and deliver all that is left of them."""
        if self.order.trial is not None:
            self._trial.draw_ahead()
        try:
            await self._start_ranks()
        except (AttemptImpossible, PipFailed) as error:
            for rank in self._ranks:
                rank.refuse(error.message, error.hint)
            self._context.changed()
        if await self._only_exits_left():
            delivering = asyncio.create_task(self._deliver(ends_store=True))
            await self._first_report(delivering)
            await asyncio.gather(self._clear_up(), delivering)
        else:
            await self._clear_up()
            self._context.end_store(self.order.group_rank == 0)
            await self._deliver()

    def stop(self, mode: StopMode, because: str = "") -> None:
        """End the ranks, by ever harsher signals. A harsher mode replaces a milder one."""
        self._context.outputs.hurry(mode, because or _BECAUSE[mode])
        harshness = list(StopMode).index
        if self.gone.is_set() or (self._mode and harshness(mode) <= harshness(self._mode)):
            return
        self._mode = mode
        if self._preparing and not self._preparing.done():
            self._preparing.cancel()
        self._escalate(mode, because or _BECAUSE[mode], self._ranks)
        if self.order.session and mode is StopMode.INTERRUPT:
            self.cells.end_idle()

    def let_leave(self) -> None:
        """Tell the ranks that their trial is pruned; they agree on a step to leave at."""
        if not self._told_to_leave:
            self._told_to_leave = True
            for rank in self._ranks:
                rank.let_leave()

    def profile(self, order: ProfileOrder) -> None:
        """Have ranks profile their next steps, once for each order."""
        if order.id == self._profile_id:
            return
        self._profile_id = order.id
        for rank in self._ranks:
            if rank.rank in order.ranks:
                rank.profile(order.steps)

    def fail(self, error: JobError) -> None:
        """End the ranks at once, with an error that is not their own."""
        for rank in self._ranks:
            rank.fail(error)
        self.stop(StopMode.KILL, error.message)

    def renew(self, order: RunOrder) -> None:
        """Take a changed order of the same attempt: in a fault-tolerant one, the lead may come here."""
        self.order = order
        self.connectivity.peers = order.peers
        if order.fault_tolerant and self.delivered and self.result.info is None and order.returns_result:
            self._late_result = asyncio.create_task(self._upload_late_result())

    def refused(self) -> None:
        """The service has refused a report, maybe because of the result in it."""
        if self.result.refused():
            self.delivered = False
            self._late_result = asyncio.create_task(self._upload_late_result())

    async def _upload_late_result(self) -> None:
        await self._upload_result()
        self.delivered = True
        self._context.changed()

    def forget(self) -> None:
        """Remove the attempt's files."""
        if self._late_result:
            self._late_result.cancel()
        self.result.close()
        self._trial.close()
        self.watchdog.close()
        for spool in self._spools():
            spool.close()
        shutil.rmtree(self._paths.folder, ignore_errors=True)

    async def _start_ranks(self) -> None:
        context = self._context
        preparation = Preparation(self.order, self._paths, context.settings, context.client, context.parts)
        self._preparing = asyncio.create_task(preparation.run(self._context.zygote, self.connectivity))
        if self._mode:
            self._preparing.cancel()
        try:
            await asyncio.gather(self._preparing, self._gpu_memory.remember())
        except asyncio.CancelledError:
            if self._mode is None:
                raise
            raise AttemptImpossible(f"The ranks were not started: {_BECAUSE[self._mode]}.") from None
        except OSError as error:
            node = self._context.settings.node
            raise AttemptImpossible(f"The cell could not be written on {node}: {error.strerror}.") from error
        await self._live()

    async def _live(self) -> None:
        failing = asyncio.create_task(self._end_all_when_one_fails())
        watching = asyncio.create_task(self.watchdog.run())
        reading = asyncio.create_task(self.use.run())
        uploading = asyncio.create_task(self._upload_early())
        feeding = asyncio.create_task(self._feed()) if self.order.session else None
        zygote = self._context.zygote
        await asyncio.gather(*(rank.run(zygote, index) for index, rank in enumerate(self._ranks)))
        failing.cancel()
        watching.cancel()
        reading.cancel()
        uploading.cancel()
        if feeding:
            feeding.cancel()
        if self._escalation:
            self._escalation.cancel()

    async def _feed(self) -> None:
        """Hand the session's cells to the ranks; without that they would wait for ever."""
        try:
            await self.cells.run()
        except (ServiceRefused, OSError) as error:
            message = f"{self._context.settings.node} gets no more cells: {error}"
            self.fail(JobError(kind=ErrorKind.LOST, message=message, at=time.time()))

    async def _end_all_when_one_fails(self) -> None:
        waits = {asyncio.create_task(rank.failing.wait()): rank for rank in self._ranks}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            culprit = waits[done.pop()]
            others = [rank for rank in self._ranks if not rank.leaving]
            if self._mode is None:  # Else they are being ended already, maybe more gently.
                self._escalate(StopMode.ABORT, f"rank {culprit.rank} failed", others)
        finally:
            for wait in waits:
                wait.cancel()

    def _escalate(self, mode: StopMode, because: str, ranks: list[LocalRank]) -> None:
        if self._escalation:
            self._escalation.cancel()

        for rank in ranks:
            rank.no_progress_s = self.watchdog.no_progress_s(rank.rank)

        def send(number: signal.Signals) -> None:
            self._context.zygote.wake()
            for rank in ranks:
                rank.send(number, because)

        self._escalation = asyncio.create_task(escalate(mode, send))

    async def _clear_up(self) -> None:
        """End all processes that the ranks left, and read the last of their output."""
        if not await processes.clear_below(os.getpid(), await self._context.surviving()):
            self._notes.append(f"Processes of the job do not end on {self._context.settings.node}.")
        if held := await self._gpu_memory.still_held():
            self._notes.append(f"{held} Its node is {self._context.settings.node}.")
        if self.order.bundle_sha256:
            self._notes += await asyncio.to_thread(lost_files, self._paths, self._context.settings.node)
        for rank in self._ranks:
            rank.drain()
            rank.close()
        self.gone.set()
        self._context.changed()

    async def _only_exits_left(self) -> bool:
        """Return whether nothing can change any more what the ranks leave behind: they only exit."""
        if self.order.bundle_sha256 or not all(rank.left.is_set() for rank in self._ranks):
            return False
        known = await self._context.surviving() | {rank.process_id for rank in self._ranks}
        return known.issuperset(processes.descendants(os.getpid()))

    async def _first_report(self, delivering: asyncio.Task[None]) -> None:
        """Leave the loop to the report with the result: the notebook waits for that, and for nothing else."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_REPORT_S):
                await asyncio.shield(delivering)
                self._acknowledged.clear()
                await self._acknowledged.wait()

    async def _deliver(self, *, ends_store: bool = False) -> None:
        await self._upload_result()
        sound = all(rank.idle or rank.ended_by_itself for rank in self._ranks)
        await asyncio.gather(
            self._upload_last_snapshot(),
            self._context.outputs.finish(),
            self._context.compiled.finish(sound=sound),
            self._trial.settle(),
        )
        while self.unsent:
            self._acknowledged.clear()
            await self._acknowledged.wait()
        if ends_store:
            # In the same report as the end: the service may send the next attempt to the new store at once.
            self._context.end_store(self.order.group_rank == 0)
        self.delivered = True
        self._context.changed()

    def _compiles(self, environment: str) -> None:
        self._context.compiled.wanted(environment, self._paths.compile_cache)

    async def _output_sent(self) -> None:
        """Wait until the service has all that the ranks wrote so far."""
        while self.unsent:
            self._acknowledged.clear()
            self._context.changed()
            await self._acknowledged.wait()

    async def _upload_last_snapshot(self) -> None:
        """Upload the last snapshot, unless the job waits to go on without a node."""
        if self._mode is not StopMode.KILL:
            alike = all(rank.idle or rank.ended_by_itself for rank in self._ranks)
            limit_s = 60.0 if not self.failed else _LAST_SNAPSHOT_S
            await self._context.snapshots.finish(limit_s, alike=alike)

    async def _upload_result(self) -> None:
        first = self._ranks[0]
        if not self.order.returns_result or not first.succeeded or not self.result.exists:
            return
        try:
            await self.result.deliver()
        except ServiceRefused as error:
            self._notes.append(f"{RESULT_LEFT}. {error.message}")

    async def _upload_early(self) -> None:
        await self._ranks[0].finished.wait()
        if self.order.returns_result:
            self.result.begin()

    def _spools(self) -> list[Spool]:
        ranks = self._ranks
        return [*(rank.displays for rank in ranks), *(rank.output for rank in ranks), self._records]


# How ranks are ended: signals that get harsher with time.


class EscalationStep(NamedTuple):
    """A signal, and how long to wait for what it does."""

    signal: signal.Signals
    wait_s: float


_KILL = EscalationStep(signal.SIGKILL, 0.0)
# A cell has the first seconds to put its things in order. All of it, with what the service does before and
# after, has to fit into the 12 s within which a stopped job leaves nothing.
ESCALATION: dict[StopMode, tuple[EscalationStep, ...]] = {
    StopMode.INTERRUPT: (
        EscalationStep(signal.SIGINT, 4.0),
        EscalationStep(signal.SIGTERM, 1.0),
        EscalationStep(signal.SIGKILL, 0.0),
    ),
    StopMode.ABORT: (EscalationStep(signal.SIGTERM, 2.0), _KILL),
    StopMode.YIELD: (_KILL,),
    StopMode.KILL: (_KILL,),
}


async def escalate(mode: StopMode, send: Callable[[signal.Signals], None]) -> None:
    """Send each signal of the mode in turn. It is cancelled when the last rank has ended."""
    for step in ESCALATION[mode]:
        send(step.signal)
        await asyncio.sleep(step.wait_s)
