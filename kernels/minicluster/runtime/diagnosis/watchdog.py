"""Watches an agent's ranks: which make no progress, and their stacks when the service requests them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from minicluster.runtime import processes
from minicluster.runtime.agent.ranks import LocalRank
from minicluster.runtime.diagnosis import stacks
from minicluster.runtime.diagnosis.collectives import collective_of
from minicluster.runtime.paths import AttemptPaths
from minicluster.wire import RankStack, StackStatus

SAMPLE_S = 1.0
BUSY_SHARE = 0.05
"""A process that uses more of a core makes progress: polling with sleeps uses less."""


class Watchdog:
    """Watches the ranks of one attempt, and dumps their stacks once for each new id in the orders."""

    def __init__(
        self,
        ranks: Sequence[LocalRank],
        paths: AttemptPaths,
        stall_timeout_s: float,
        changed: Callable[[], None],
    ) -> None:
        self._ranks = ranks
        self._paths = paths
        self._changed = changed
        self._detector = StallDetector(ranks, stall_timeout_s, changed)
        self._requested_id = 0
        self._dumped_id = 0
        self._stacks: tuple[RankStack, ...] = ()
        self._dumping: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._detector.run()

    def report(self) -> dict[str, Any]:
        """Return the fields of the task's report that are about progress and stacks."""
        return {"quiet": self._detector.stalled_ranks, "look": self._dumped_id, "stacks": self._stacks}

    def no_progress_s(self, rank: int) -> float:
        """Return for how long a rank has made no progress."""
        return round(self._detector.no_progress_s(rank, asyncio.get_running_loop().time()), 1)

    def acknowledge(self, stack_dump_id: int) -> None:
        """Drop the stacks once the service has them."""
        if stack_dump_id == self._dumped_id:
            self._stacks = ()

    def request_dump(self, stack_dump_id: int) -> None:
        """Dump the stacks, unless it is 0 or the id of the last request."""
        if stack_dump_id in (0, self._requested_id):
            return
        self._requested_id = stack_dump_id
        if self._dumping:
            self._dumping.cancel()
        self._dumping = asyncio.create_task(self._dump_all(stack_dump_id))

    def close(self) -> None:
        if self._dumping:
            self._dumping.cancel()

    async def _dump_all(self, stack_dump_id: int) -> None:
        cell = stacks.CellText.read(self._paths.cell)
        found = await asyncio.gather(*(self._dump_rank(rank, cell) for rank in self._ranks))
        self._stacks, self._dumped_id = tuple(found), stack_dump_id
        self._changed()

    async def _dump_rank(self, rank: LocalRank, cell: stacks.CellText) -> RankStack:
        if rank.pid is None:
            sight = StackStatus.ENDED if rank.leaving or rank.end else StackStatus.STARTING
            return RankStack(rank=rank.rank, sight=sight)
        answers = self._paths.stacks(rank.rank)
        requests, recorded = (
            self._paths.requests(rank.rank),
            self._paths.collective_answers(rank.rank),
        )
        to_dump = RankToDump(rank.rank, rank.pid, answers, cell, self.no_progress_s(rank.rank))
        seen, collective = await asyncio.gather(
            dump_stack(to_dump), collective_of(requests, recorded, _PATIENCE_S)
        )
        return seen.model_copy(update={"ending": rank.waits_for, "collective": collective})


# Which ranks make no progress: no output, no record, and next to no CPU time, children included.
# A rank that waits for others in a collective uses none. A rank whose GPU computes while Python waits
# uses a whole core, since CUDA spins: such a one never counts as stalled.


class WatchedRank(Protocol):
    """A rank as its agent follows it. pid: None while it does not live. output_bytes: printed so far.

    idle: whether it is a session's rank that waits for the next cell.
    """

    @property
    def rank(self) -> int: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def output_bytes(self) -> int: ...

    @property
    def idle(self) -> bool: ...


@dataclass
class LifeSigns:
    """What was last seen of one rank. since: of when there was no progress."""

    since: float
    sampled_at: float
    output_bytes: int = 0
    cpu_s: float = 0.0

    def has_new_output(self, total_bytes: int, now: float) -> bool:
        """Take the size of all that the rank has printed and reported; return whether there is more."""
        if total_bytes == self.output_bytes:
            return False
        self.output_bytes, self.since = total_bytes, now
        return True

    def worked(self, cpu_s: float, now: float) -> None:
        """Take the rank's CPU time until now."""
        spent_s, self.cpu_s = cpu_s - self.cpu_s, cpu_s
        if spent_s > BUSY_SHARE * (now - self.sampled_at):
            self.since = now
        self.sampled_at = now


class StallDetector:
    """Samples the ranks of an attempt each second; calls `changed` when `stalled_ranks` changes.

    stall_timeout_s: time without progress after which a rank counts as stalled; 0: never.
    """

    def __init__(
        self, ranks: Sequence[WatchedRank], stall_timeout_s: float, changed: Callable[[], None]
    ) -> None:
        self.stalled_ranks: tuple[int, ...] = ()
        self._ranks = ranks
        self._stall_timeout_s = stall_timeout_s
        self._changed = changed
        self._signs: dict[int, LifeSigns] = {}

    async def run(self) -> None:
        """Sample until cancelled."""
        clock = asyncio.get_running_loop().time
        try:
            while True:
                self.sample(clock(), processes.cpu_seconds)
                await asyncio.sleep(SAMPLE_S)
        finally:
            self.stalled_ranks = ()  # Reports go on after the ranks have ended.

    def no_progress_s(self, rank: int, now: float) -> float:
        """Return for how long a rank has made no progress."""
        signs = self._signs.get(rank)
        return max(0.0, now - signs.since) if signs else 0.0

    def sample(self, now: float, cpu_seconds: Callable[[list[int]], dict[int, float]]) -> None:
        """Take one sample. CPU times are read only for ranks without new output."""
        living = {rank.rank: rank for rank in self._ranks if rank.pid is not None}
        self._signs = {rank: self._signs.get(rank) or LifeSigns(now, now) for rank in living}
        signs = self._signs
        for one in living.values():
            if one.idle:
                signs[one.rank].since = now
        silent = [one for one in living.values() if not signs[one.rank].has_new_output(one.output_bytes, now)]
        cpu = cpu_seconds([one.pid for one in silent if one.pid]) if silent else {}
        for one in silent:
            self._signs[one.rank].worked(cpu.get(one.pid or 0, 0.0), now)
        timeout_s = self._stall_timeout_s
        stalled = tuple(
            rank for rank in sorted(living) if timeout_s and self.no_progress_s(rank, now) >= timeout_s
        )
        if stalled != self.stalled_ranks:
            self.stalled_ranks = stalled
            self._changed()


# One rank's stack: signal the rank and wait for its answer; without an answer, ask the kernel for its state.


_PATIENCE_S = 1.0
_POLL_S = 0.02
_STILL_POLLS = 20
"""A file that stayed as it is for so many polls is complete, whatever its last line is."""
_MOST_HELPERS = 4
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class RankToDump:
    """A rank whose stack is wanted. answers: the file into which it writes its stack."""

    rank: int
    pid: int
    answers: Path
    cell: stacks.CellText
    no_progress_s: float


async def dump_stack(at: RankToDump) -> RankStack:
    """Return a rank's stack, or why there is none. Takes about a second at most."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _PATIENCE_S
    _make_room(at.answers)
    text = await _ask(at.pid, at.answers, until)
    if text is None:
        sight = _why_silent(at.pid)
        return RankStack(rank=at.rank, sight=sight, quiet_s=at.no_progress_s)
    frames = stacks.parse(text, at.cell)
    helpers = []
    for pid in _helpers(at.pid)[:_MOST_HELPERS]:
        answer = await _ask(pid, at.answers, min(until, loop.time() + _PATIENCE_S / 4))
        if answer is not None:
            helpers.append(stacks.parse(answer, at.cell))
    return RankStack(
        rank=at.rank, sight=StackStatus.SEEN, quiet_s=at.no_progress_s, frames=frames, helpers=tuple(helpers)
    )


async def _ask(pid: int, path: Path, until: float) -> str | None:
    """Signal a process and return what it writes; None when it does not."""
    if not stacks.answers(pid) or processes.state_of(pid) in "TtZX":
        return None
    before = stacks.size(path)
    if not stacks.is_pending(pid):
        try:
            os.kill(pid, stacks.DUMP_SIGNAL)
        except ProcessLookupError:
            return None
    size, still_polls = before, 0
    while asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_POLL_S)
        last, size = size, stacks.size(path)
        still_polls = still_polls + 1 if before < size == last else 0
        if not still_polls:
            continue
        # On a busy machine the rank may pause in between.
        text = _read(path, before)
        if stacks.is_whole(text) or still_polls >= _STILL_POLLS:
            return text
    return None


def _why_silent(pid: int) -> StackStatus:
    state = processes.state_of(pid)
    if state in "ZX":
        return StackStatus.ENDED
    if state in "Tt":
        return StackStatus.STOPPED
    if not stacks.answers(pid):
        return StackStatus.STARTING
    return StackStatus.KERNEL if state == "D" else StackStatus.SILENT


def _helpers(pid: int) -> list[int]:
    """Return the processes that the rank forked: those with its signal handler and its program."""
    return [
        child
        for child in sorted(processes.descendants(pid))
        if stacks.answers(child) and _program(child) == _program(pid)
    ]


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/exe").readlink())
    return ""


def _make_room(path: Path) -> None:
    """Drop old answers. The ranks append, so the file may be cut."""
    if stacks.size(path) > _MOST_BYTES:
        os.truncate(path, 0)


def _read(path: Path, offset: int) -> str:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read().decode("utf-8", "replace")
