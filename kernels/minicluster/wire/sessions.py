"""Cells of a session: a job whose ranks stay, and run one cell after the other."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Base64Bytes, Field, model_validator

from minicluster.wire.base import Count, Message, Sha256
from minicluster.wire.jobs import BlobInfo, JobError
from minicluster.wire.limits import PARTS_OF_JOB, RANKS_OF_TASK

INLINE_BYTES = 64 << 10
"""A cell, or a result, of at most this size travels within its message; a larger one is a blob."""
SHORT_CELL_S = 0.4
"""A cell that takes longer is shown while it runs: the request that submits it is answered then."""
INLINE_CHARS = 2 * INLINE_BYTES
"""Its limit in a message, as base64."""


class CellState(StrEnum):
    """interrupted: a person stopped the cell; the ranks and what they have made are still there."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def over(self) -> bool:
        return self not in (CellState.QUEUED, CellState.RUNNING)


class CellBody(Message):
    """A cell: either within the message, or a blob. parts: see JobSpec."""

    payload: Base64Bytes | None = Field(default=None, max_length=INLINE_CHARS)
    payload_sha256: Sha256 | None = None
    parts: tuple[Sha256, ...] = Field(default=(), max_length=PARTS_OF_JOB)

    @model_validator(mode="after")
    def _one_of_both(self) -> CellBody:
        if (self.payload is None) == (self.payload_sha256 is None):
            raise ValueError("give the cell either as payload or as payload_sha256")
        return self


class CellSubmit(CellBody):
    """POST api/jobs/{job_id}/cells. The same key again is the same cell.

    attempt: the job's attempt whose ranks have what the cell needs; 0: it needs nothing.
    """

    idempotency_key: str = Field(min_length=8, max_length=64)
    attempt: Count = 0


class CellOrder(CellBody):
    """The cell that a session's ranks shall run; they run each number once, from 1 on.

    group: how many cells broke the process group before; the ranks make it anew once for each.
    unfinished: how many cells failed or were interrupted before. After each, a rank may have made a step more
    than another.
    """

    number: int = Field(ge=1)
    group: Count = 0
    unfinished: Count = 0


class CellSignals(Message):
    """What the ranks of a session shall do about a cell that runs; part of a task's orders.

    interrupt: the cell to end with KeyboardInterrupt; 0: none. leave: the cell that some ranks have ended
    with an error while others wait for them: those that have ended it close their connections.
    """

    interrupt: Count = 0
    leave: Count = 0


class CellEnd(Message):
    """How a cell ended on a rank. error: None if it came to its end.

    collectives: how many the rank has begun in its process group so far. broke_step: the cell ended within a
    backward pass, so that a DistributedDataParallel cannot begin another one in this group.
    """

    rank: Count
    collectives: Count = 0
    broke_step: bool = False
    error: JobError | None = None
    interrupted: bool = False


class CellEnding(Message):
    """What a cell brings for the notebook, inline or as a blob; both None: nothing."""

    result: Base64Bytes | None = Field(default=None, max_length=INLINE_CHARS)
    result_blob: BlobInfo | None = None


class CellProgress(CellEnding):
    """POST api/tasks/cells: how the ranks of a task ended a cell; the answer is held until there is another.

    So the end of a cell and the way to the next one are one request. attempt: whose ranks they are.
    number: of the cell that all of them have ended; 0: none yet.
    The lowest rank's task brings the result.
    """

    attempt: Count
    number: Count = 0
    ends: tuple[CellEnd, ...] = Field(default=(), max_length=RANKS_OF_TASK)


class NextCell(Message):
    """cell: the newest one; None: there is none so far."""

    cell: CellOrder | None = None


class SessionCell(CellEnding):
    """A cell as the session's owner sees it. Times are seconds since the epoch on the service's clock.

    printed: the end of what each rank printed, by the stream's name; only of a cell that is over.
    drawn: whether it displayed or logged something, which its events have (api/jobs/N/cells/M/events).
    """

    job_id: int
    number: int
    state: CellState
    error: JobError | None = None
    printed: dict[str, str] = Field(default_factory=dict)
    drawn: bool = False
    submitted_at: float
    ended_at: float | None = None
