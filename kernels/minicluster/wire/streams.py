"""Server-sent events of one job: its output and what its ranks log."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Base64Bytes, Field

from minicluster.wire.base import MOST, Message, StreamName
from minicluster.wire.limits import METRIC_CHARS

DisplayId = Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]
CLEAR = "\x1b_mc-clear\x1b\\"
CLEAR_NEXT = "\x1b_mc-clear-next\x1b\\"
"""Clear what the rank has shown so far: now, or once there is something else."""
_END = "\x1b_mc-end\x1b\\"
MARK = re.compile(r"\x1b_mc-(?:(display|update) ([0-9a-f]{8,64})|(end|clear|clear-next))\x1b\\")
"""Groups: "display" or "update" with the id, or one of the others."""


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
    """How far a training is, as reported by its first rank.

    done, total: in a unit of the training's own (epochs, say); total: None if not known.
    steps: that the optimizer took in this attempt. gradient_bytes: what the ranks exchange in each.
    """

    done: float = Field(ge=0, le=MOST, allow_inf_nan=False)
    total: float | None = Field(default=None, ge=0, le=MOST, allow_inf_nan=False)
    steps: int = Field(default=0, ge=0, le=MOST)
    gradient_bytes: int = Field(default=0, ge=0, le=MOST)


MEDIA_CHARS = 960_000
"""Of base64. A record is one line, and agents drop lines of more than 1 MiB."""
HISTOGRAM = "application/vnd.minicluster.histogram+json"
"""Content: {"counts": [...], "edges": [...], "not_finite": N}; one edge more than counts."""
TABLE = "application/vnd.minicluster.table+json"
"""Content: {"columns": [...], "rows": [[...], ...], "total": N}; total: rows before they were cut."""
MediaType = Literal[
    "image/png",
    "image/jpeg",
    "application/vnd.minicluster.histogram+json",
    "application/vnd.minicluster.table+json",
]


class Media(Message):
    """A picture, a histogram or a table that a rank logged. content: in base64; "" in news of it."""

    name: str = Field(min_length=1, max_length=METRIC_CHARS)
    mime: MediaType
    content: str = Field(default="", max_length=MEDIA_CHARS)


class StepTimes(Message):
    """Where the time of a rank's steps went since its last such record. In seconds of wall-clock time.

    steps: of the optimizer. seconds: of all. data: waiting for the next batch. communication: waiting for
    other ranks, as far as no computing hides it. The rest is computing.
    """

    steps: int = Field(ge=0, le=MOST)
    seconds: float = Field(ge=0, le=MOST, allow_inf_nan=False)
    data: float = Field(default=0.0, ge=0, le=MOST, allow_inf_nan=False)
    communication: float = Field(default=0.0, ge=0, le=MOST, allow_inf_nan=False)


class Record(Message):
    """One line of the stream `records`: what `mc.log` or `mc.progress` said, or what is measured in a rank.

    done, total, label: of one bar. whole: of all of the training.
    """

    kind: Literal["log", "progress", "media", "speed"]
    rank: int
    at: float
    step: float | None = None
    values: dict[str, float] = Field(default_factory=dict)
    done: float | None = None
    total: float | None = None
    label: str = ""
    whole: Progress | None = None
    media: Media | None = None
    speed: StepTimes | None = None


class Records(Message):
    """Event `records`. Skipped in the middle when a reader falls behind, never at the end.

    records: of the kinds "log" and "progress". more: of other kinds, which readers of earlier releases do not
    know; media without their content.
    """

    records: tuple[Record, ...]
    more: tuple[Record, ...] = ()


# What ranks display besides text: figures, tables, HTML.
# The content travels in a stream of its own for each rank, `display-N`: one `Display` as JSON per line. Where
# it belongs between the lines of the rank's output is told there, by a mark that a terminal does not show (an
# APC sequence), around the text that stands for it where nothing else can be shown.


def shown_here(display_id: str, text: str) -> str:
    """Return what stands in a rank's output for something that is displayed there."""
    return f"\x1b_mc-display {display_id}\x1b\\{text}\n{_END}"


def changed(display_id: str) -> str:
    """Return what stands in a rank's output when something that it displayed before changed."""
    return f"\x1b_mc-update {display_id}\x1b\\"


class Display(Message):
    """One line of a stream `display-N`. A later one of the same id takes the place of the former.

    data: the content by MIME type; images in base64, as in a notebook's file.
    width, height: in pixels, where the cell said it.
    """

    id: DisplayId
    data: dict[str, str]
    width: int | None = None
    height: int | None = None


SMALL_RESULT_BYTES = 64 << 10


class SmallResult(Message):
    """Event `result`, before the last one: what GET api/jobs/ID/result answers, if it is small."""

    data: Base64Bytes = Field(max_length=2 * SMALL_RESULT_BYTES)


class Displays(Message):
    """Event `displays`: what a rank displayed, in order. None is left out for readers that fall behind."""

    rank: int
    attempt: int
    displays: tuple[Display, ...]
