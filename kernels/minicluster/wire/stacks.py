"""Where ranks are: their frames, as their agents see them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from minicluster.wire.base import Count, Message
from minicluster.wire.limits import FRAMES, first


class StackStatus(StrEnum):
    """How much an agent could learn of a rank.

    seen: its frames are known. stopped: by a signal (SIGSTOP), it answers when it goes on.
    kernel: inside a system call that no signal interrupts (a disk, a file server, a driver).
    silent: it did not answer, though it runs. starting: its process cannot answer yet.
    ended: its cell is over. unreachable: its node did not answer (only the service reports this).
    """

    SEEN = "seen"
    STOPPED = "stopped"
    KERNEL = "kernel"
    SILENT = "silent"
    STARTING = "starting"
    ENDED = "ended"
    UNREACHABLE = "away"


class StackFrame(Message):
    """One call. cell: it is a line of the job's own cell, whose text is in `text`."""

    file: str = Field(max_length=512)
    line: Count
    function: str = Field(max_length=512)
    cell: bool = False
    text: str = Field(default="", max_length=200)


Frames = Annotated[tuple[StackFrame, ...], Field(max_length=FRAMES), first(FRAMES)]


class Collective(Message):
    """An operation of torch.distributed on one rank, from torch's flight recorder.

    number: how many the group had with it; for a send or receive (is_p2p), how many of those. group: the
    process group's name. tensors: those that go in, "float32[10, 20]". is_over: the rank waits in no other.
    """

    name: str = Field(max_length=200)
    number: Count
    group: str = Field(default="", max_length=200)
    tensors: str = Field(default="", max_length=200)
    is_p2p: bool = False
    is_over: bool = False


class RankStack(Message):
    """Where one rank is. frames: of its main thread, the innermost first; helpers: those of the
    processes that it forked (a DataLoader's), one tuple each.

    quiet_s: seconds without output, without a record and almost without CPU time.
    ending: what its process waits for after the cell's end: "its thread loader". collective: which it is in,
    or was in last.
    """

    rank: Count
    sight: StackStatus
    quiet_s: float = 0.0
    ending: str = Field(default="", max_length=200)
    frames: Frames = ()
    helpers: tuple[Frames, ...] = Field(default=(), max_length=4)
    collective: Collective | None = None
