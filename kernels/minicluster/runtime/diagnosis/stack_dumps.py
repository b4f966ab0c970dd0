"""The agent's look at one rank: signal it, wait for its answer, else say what the kernel says of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from minicluster.runtime import processes
from minicluster.runtime.diagnosis import stacks
from minicluster.wire import RankSight, RankStack

_PATIENCE_S = 1.0
_POLL_S = 0.02
_MOST_HELPERS = 4
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Looked:
    """A rank as it can be looked at. answers: the file that it answers into."""

    rank: int
    pid: int
    answers: Path
    cell: stacks.CellText
    quiet_s: float


async def look(at: Looked) -> RankStack:
    """Say where a rank is. Takes about a second at most."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _PATIENCE_S
    _make_room(at.answers)
    text = await _ask(at.pid, at.answers, until)
    if text is None:
        sight = _why_silent(at.pid)
        return RankStack(rank=at.rank, sight=sight, quiet_s=at.quiet_s)
    frames = stacks.parse(text, _main_thread(at.answers), at.cell)
    helpers = []
    for pid in _helpers(at.pid)[:_MOST_HELPERS]:
        said = await _ask(pid, at.answers, min(until, loop.time() + _PATIENCE_S / 4))
        if said is not None:
            helpers.append(stacks.parse(said, "", at.cell))
    return RankStack(
        rank=at.rank, sight=RankSight.SEEN, quiet_s=at.quiet_s, frames=frames, helpers=tuple(helpers)
    )


async def _ask(pid: int, path: Path, until: float) -> str | None:
    """Signal a process and return what it writes; None when it does not."""
    if not stacks.answers(pid) or processes.state_of(pid) in "TtZX":
        return None
    before = stacks.size(path)
    if not stacks.is_asked(pid):
        try:
            os.kill(pid, stacks.LOOK_SIGNAL)
        except ProcessLookupError:
            return None
    size = before
    while asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_POLL_S)
        last, size = size, stacks.size(path)
        if size > before and size == last:  # It has come to rest.
            return _read(path, before)
    return None


def _why_silent(pid: int) -> RankSight:
    state = processes.state_of(pid)
    if state in "ZX":
        return RankSight.ENDED
    if state in "Tt":
        return RankSight.STOPPED
    if not stacks.answers(pid):
        return RankSight.STARTING
    return RankSight.KERNEL if state == "D" else RankSight.SILENT


def _helpers(pid: int) -> list[int]:
    """Return the processes that the rank forked: they have its handler, and its program."""
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
    """Drop old answers, all but the first line. The ranks append, wherever the end is."""
    if stacks.size(path) > _MOST_BYTES:
        os.truncate(path, len(_main_thread(path)) + 1)


def _read(path: Path, offset: int) -> str:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read().decode("utf-8", "replace")


def _main_thread(path: Path) -> str:
    with path.open("rb") as file:
        return file.readline().decode().strip()
