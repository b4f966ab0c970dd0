"""Server-sent events of one job: its output and what its ranks log."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from minicluster.wire.base import MOST, Message, StreamName


class LogChunk(Message):
    """Event `log`: text of one stream from byte `offset` on, `size_bytes` long on disk.

    `skipped_bytes` > 0: a reader that fell behind was moved forward by that much before `offset`.
    `attempt`: the number of the attempt whose stream it is.
    """

    stream: StreamName
    offset: int
    size_bytes: int
    text: str
    skipped_bytes: int = 0
    attempt: int = 1


class Progress(Message):
    """How far a training is, as its first rank tells.

    done, total: in a unit of the training's own (epochs, say); total None: nobody knows.
    steps: that the optimizer took in this attempt. gradient_bytes: what the ranks exchange in each.
    """

    done: float = Field(ge=0, le=MOST, allow_inf_nan=False)
    total: float | None = Field(default=None, ge=0, le=MOST, allow_inf_nan=False)
    steps: int = Field(default=0, ge=0, le=MOST)
    gradient_bytes: int = Field(default=0, ge=0, le=MOST)


class Record(Message):
    """One line of the stream `records`: what `mc.log` or `mc.progress` said.

    done, total, label: of one bar. whole: of all of the training.
    """

    kind: Literal["log", "progress"]
    rank: int
    at: float
    step: float | None = None
    values: dict[str, float] = Field(default_factory=dict)
    done: float | None = None
    total: float | None = None
    label: str = ""
    whole: Progress | None = None


class Records(Message):
    """Event `records`. Skipped in the middle when a reader falls behind, never at the end."""

    records: tuple[Record, ...]
