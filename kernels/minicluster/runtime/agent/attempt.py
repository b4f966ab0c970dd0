"""One attempt on this node, from the order to the last acknowledged byte."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from minicluster.publishing.pip import PipFailed
from minicluster.runtime import processes
from minicluster.runtime.agent.artifacts import OutputKeeper
from minicluster.runtime.agent.errors import with_first_errors
from minicluster.runtime.agent.link import Backoff, Link, ServiceAway, ServiceRefused
from minicluster.runtime.agent.parent import Parent
from minicluster.runtime.agent.preparation import AttemptImpossible, Preparation, lost_files
from minicluster.runtime.agent.ranks import LocalRank
from minicluster.runtime.agent.snapshots import SnapshotKeeper
from minicluster.runtime.agent.streams import CHUNK_BYTES, Spool
from minicluster.runtime.diagnosis.connectivity import ConnectivityCheck
from minicluster.runtime.diagnosis.watchdog import Watchdog
from minicluster.runtime.node.gpus import GpuMemory
from minicluster.runtime.paths import AttemptPaths
from minicluster.runtime.settings import AgentSettings
from minicluster.wire import (
    RESULT_LEFT,
    BlobInfo,
    JobError,
    RankReport,
    RunOrder,
    StopMode,
    StreamChunk,
    TaskReport,
    few_notes,
)

REPORT_BYTES = 1 << 20
_LAST_SNAPSHOT_S = 5.0
"""For the last snapshot of an attempt that failed: shorter than the service waits for its end."""
_BECAUSE = {
    StopMode.INTERRUPT: "the job was stopped",
    StopMode.ABORT: "the job's attempt was ended",
    StopMode.YIELD: "the job made room",
    StopMode.KILL: "the job goes on without a lost node",
}


def _is_harsher(mode: StopMode, than: StopMode) -> bool:
    modes = list(StopMode)
    return modes.index(mode) > modes.index(than)


@dataclass(frozen=True)
class Surroundings:
    """What an attempt needs of its agent. end_store: called at its end, with
    whether the store here was its; kept: the processes below the agent that outlive an attempt."""

    settings: AgentSettings
    link: Link
    parent: Parent
    changed: Callable[[], None]
    output_came: Callable[[], None]
    end_store: Callable[[bool], None]
    kept: Callable[[], Awaitable[set[int]]]
    snapshots: SnapshotKeeper
    outputs: OutputKeeper


class Attempt:
    """The ranks of one attempt on this node, with their streams and their result."""

    def __init__(self, order: RunOrder, around: Surroundings) -> None:
        self.order = order
        self.id = order.attempt
        self.result: BlobInfo | None = None
        self.delivered = False
        self.gone = asyncio.Event()
        self._around = around
        self._paths = AttemptPaths(around.settings.scratch / f"attempt-{order.attempt}")
        shutil.rmtree(self._paths.folder, ignore_errors=True)
        self._paths.folder.mkdir(parents=True)
        stream = "records" if order.group_rank == 0 else f"agent-{order.group_rank}"
        self._records = Spool(stream, self._paths.spool(stream))
        self._ranks = [self._local_rank(index) for index in range(order.local_world_size)]
        self.watchdog = Watchdog(self._ranks, self._paths, order.quiet_after_s, around.changed)
        self.connectivity = ConnectivityCheck(order.peers, around.changed)
        self._gpu_memory = GpuMemory()
        self._notes: list[str] = []
        self._mode: StopMode | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._descent: asyncio.Task[None] | None = None
        self._acknowledged = asyncio.Event()
        self._late: asyncio.Task[None] | None = None

    # What the agent reports.

    @property
    def failed(self) -> bool:
        return any(rank.failure for rank in self._ranks)

    @property
    def unsent(self) -> int:
        return sum(spool.unsent for spool in self._spools())

    def rank_reports(self) -> tuple[RankReport, ...]:
        hold = not (self.delivered or self.failed or self._around.outputs.hurried)
        return with_first_errors([rank.report(hold_success=hold) for rank in self._ranks])

    def notes(self) -> tuple[str, ...]:
        told = [*(rank.note for rank in self._ranks), *(spool.lost for spool in self._spools())]
        brought = (*self._around.snapshots.notes(), *self._around.outputs.notes())
        return few_notes((*self._notes, *brought, *filter(None, told)))

    def ending(self) -> tuple[str, ...]:
        return tuple(filter(None, (rank.ending for rank in self._ranks)))

    def chunks(self) -> tuple[StreamChunk, ...]:
        """Return the next piece of each stream, those first that have sent the least."""
        waiting = sorted(self._spools(), key=lambda spool: spool.acknowledged)
        chunks = [chunk for spool in waiting if (chunk := spool.chunk())]
        return tuple(chunks[: REPORT_BYTES // CHUNK_BYTES])

    def acknowledge(self, sizes: dict[str, int]) -> None:
        for spool in self._spools():
            spool.acknowledge(sizes.get(spool.name, 0))
        self._acknowledged.set()

    def told_all(self, report: TaskReport) -> bool:
        """Say whether an acknowledged report held the last word of this attempt."""
        same = (report.ranks, report.result, report.notes) == (self.rank_reports(), self.result, self.notes())
        return self.delivered and same and not self.unsent

    # What happens.

    async def run(self) -> None:
        """Run the ranks to their end and deliver all that is left of them."""
        try:
            await self._start_ranks()
        except (AttemptImpossible, PipFailed) as error:
            for rank in self._ranks:
                rank.refuse(error.message, error.hint)
            self._around.changed()
        await self._clear_up()
        self.gone.set()
        await self._deliver()

    def stop(self, mode: StopMode, because: str = "") -> None:
        """End the ranks, by ever harsher signals. A harsher mode takes the place of a milder one."""
        self._around.outputs.hurry(mode, because or _BECAUSE[mode])
        if self.gone.is_set() or (self._mode and not _is_harsher(mode, self._mode)):
            return
        self._mode = mode
        if self._preparing and not self._preparing.done():
            self._preparing.cancel()
        self._descend(mode, because or _BECAUSE[mode], self._ranks)

    def fail(self, error: JobError) -> None:
        """End the ranks at once, for what none of them says."""
        for rank in self._ranks:
            rank.fail(error)
        self.stop(StopMode.KILL, error.message)

    def renew(self, order: RunOrder) -> None:
        """Take another order of the same attempt: in a fault-tolerant one, the lead may come here."""
        self.order = order
        self.connectivity.peers = order.peers
        if order.fault_tolerant and self.delivered and self.result is None and order.brings_result:
            self._late = asyncio.create_task(self._bring_late())

    async def _bring_late(self) -> None:
        await self._upload_result()
        self._around.changed()

    def forget(self) -> None:
        """Drop the files."""
        if self._late:
            self._late.cancel()
        self.watchdog.close()
        for spool in self._spools():
            spool.close()
        shutil.rmtree(self._paths.folder, ignore_errors=True)

    async def _start_ranks(self) -> None:
        preparation = Preparation(self.order, self._paths, self._around.settings, self._around.link)
        self._preparing = asyncio.create_task(preparation.run(self._around.parent, self.connectivity))
        if self._mode:
            self._preparing.cancel()
        try:
            await asyncio.gather(self._preparing, self._gpu_memory.remember())
        except asyncio.CancelledError:
            if self._mode is None:
                raise
            raise AttemptImpossible(f"The ranks were not started: {_BECAUSE[self._mode]}.") from None
        except OSError as error:
            node = self._around.settings.node
            raise AttemptImpossible(f"The cell could not be written on {node}: {error.strerror}.") from error
        await self._live()

    async def _live(self) -> None:
        failing = asyncio.create_task(self._end_all_when_one_fails())
        watching = asyncio.create_task(self.watchdog.run())
        parent = self._around.parent
        await asyncio.gather(*(rank.live(parent, index) for index, rank in enumerate(self._ranks)))
        failing.cancel()
        watching.cancel()
        if self._descent:
            self._descent.cancel()

    async def _end_all_when_one_fails(self) -> None:
        waits = {asyncio.create_task(rank.failing.wait()): rank for rank in self._ranks}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            culprit = waits[done.pop()]
            others = [rank for rank in self._ranks if not rank.leaving]
            if self._mode is None:  # Else they are being ended already, maybe more gently.
                self._descend(StopMode.ABORT, f"rank {culprit.rank} failed", others)
        finally:
            for wait in waits:
                wait.cancel()

    def _descend(self, mode: StopMode, because: str, ranks: list[LocalRank]) -> None:
        if self._descent:
            self._descent.cancel()

        for rank in ranks:
            rank.quiet_s = self.watchdog.quiet_s(rank.rank)

        def send(number: signal.Signals) -> None:
            self._around.parent.wake()
            for rank in ranks:
                rank.send(number, because)

        self._descent = asyncio.create_task(descend(mode, send))

    async def _clear_up(self) -> None:
        """End what the ranks left behind, and read the last of their output."""
        if not await processes.clear_below(os.getpid(), await self._around.kept()):
            self._notes.append(f"Processes of the job do not end on {self._around.settings.node}.")
        if held := await self._gpu_memory.still_held():
            self._notes.append(f"{held} Its node is {self._around.settings.node}.")
        if self.order.bundle_sha256:
            self._notes += await asyncio.to_thread(lost_files, self._paths, self._around.settings.node)
        for rank in self._ranks:
            rank.drain()
            rank.close()
        self._around.end_store(self.order.group_rank == 0)
        self._around.changed()

    async def _deliver(self) -> None:
        await self._upload_result()
        await asyncio.gather(self._keep_snapshot(), self._around.outputs.finish())
        while self.unsent:
            self._acknowledged.clear()
            await self._acknowledged.wait()
        self.delivered = True
        self._around.changed()

    async def _keep_snapshot(self) -> None:
        """Bring the last snapshot into the job's storage, unless the job waits to go on without a node."""
        if self._mode is not StopMode.KILL:
            await self._around.snapshots.finish(60.0 if not self.failed else _LAST_SNAPSHOT_S)

    async def _upload_result(self) -> None:
        first = self._ranks[0]
        if not self.order.brings_result or not first.succeeded or not self._paths.result.exists():
            return
        backoff = Backoff()
        while self.result is None:
            try:
                self.result = await self._around.link.upload(self._paths.result)
            except ServiceAway:
                await asyncio.sleep(backoff.next_s())
            except ServiceRefused as error:
                self._notes.append(f"{RESULT_LEFT}. {error.message}")
                return

    def _local_rank(self, index: int) -> LocalRank:
        rank = self.order.first_rank + index
        around = self._around
        hooks = (around.changed, around.output_came)
        return LocalRank(rank, around.settings.node, self._paths, self._records, *hooks)

    def _spools(self) -> list[Spool]:
        ranks = self._ranks
        return [*(rank.displays for rank in ranks), *(rank.output for rank in ranks), self._records]


# How ranks are ended: signals that get harsher with time.


@dataclass(frozen=True)
class Step:
    """A signal, and how long to wait for what it does."""

    signal: signal.Signals
    wait_s: float


# A cell has the first seconds to put its things in order. All of it, with what the service does before and
# after, has to fit into the 12 s within which a stopped job leaves nothing.
LADDERS: dict[StopMode, tuple[Step, ...]] = {
    StopMode.INTERRUPT: (Step(signal.SIGINT, 4.0), Step(signal.SIGTERM, 1.0), Step(signal.SIGKILL, 0.0)),
    StopMode.ABORT: (Step(signal.SIGTERM, 2.0), Step(signal.SIGKILL, 0.0)),
    StopMode.YIELD: (Step(signal.SIGKILL, 0.0),),
    StopMode.KILL: (Step(signal.SIGKILL, 0.0),),
}


async def descend(mode: StopMode, send: Callable[[signal.Signals], None]) -> None:
    """Send each signal of the mode in turn. Whoever sees the last rank end cancels this."""
    for step in LADDERS[mode]:
        send(step.signal)
        await asyncio.sleep(step.wait_s)
