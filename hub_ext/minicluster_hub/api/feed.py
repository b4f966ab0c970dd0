"""The events of one job for one reader: what is new since its cursor, in bounded amounts."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from minicluster.wire import Display, Displays, Job, JobState, LogChunk, Record, Records
from minicluster.wire.streams import SMALL_RESULT_BYTES, SmallResult
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError

M = TypeVar("M", bound=BaseModel)
_LINE_SEARCH_BYTES = 8192
_RECORDS_BYTES = 2 << 20
"""Of records that are read at once: more than the longest line, a picture."""
_FIRST_KINDS = ("log", "progress")
"""The kinds of records that kernels of each release know."""
_IS_MEDIA, _KIND_WITHIN = b'"kind":"media"', 100

_PART = re.compile(r"((?:rank|display|agent)-\d{1,5}|records)=(\d{1,15})")
_HEAD = re.compile(r"E(\d{1,15});A(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. data: a message, or its JSON. cursor: the reader's position after it."""

    name: str
    data: BaseModel | str
    cursor: str = ""

    def json(self) -> str:
        return self.data if isinstance(self.data, str) else self.data.model_dump_json()


class JobFeed:
    """Reads the store and the logs from a cursor on, and advances the cursor.

    with_result: a small result comes before the end. Only the job's owner may have it.
    """

    def __init__(
        self, context: Context, record: JobRecord, cursor: Cursor, *, with_result: bool = False
    ) -> None:
        self._with_result = with_result
        self._context = context
        self._cursor = cursor
        self.job_id = record.id
        self._take(record)
        self._sent = b""
        if not cursor.attempt:
            cursor.next_attempt(min(1, record.attempts))

    @property
    def over(self) -> bool:
        """Whether the job has ended, so that its streams no longer grow."""
        return self._over

    def _take(self, record: JobRecord) -> None:
        """Store only what is needed of a record: there are hundreds of readers, and records may be large."""
        self._attempts, self._over = record.attempts, record.state.terminal

    def _job(self) -> Job | None:
        """Read the job again; None if it is gone."""
        record = self._context.store.job(self.job_id)
        if record is None:
            return None
        self._take(record)
        return self._context.status_cache.job(record)

    def news(self) -> Iterator[Event]:
        """Read the job again; yield it if what its owner sees has changed.

        The last output of an attempt comes before the job's event and the output of the next attempt.
        """
        job = self._job()
        while self._attempts > self._cursor.attempt:
            yield from self.output(final=True)
            self._cursor.next_attempt(self._cursor.attempt + 1)
        digest = hashlib.sha256(job.model_dump_json().encode()).digest() if job else self._sent
        if job and digest != self._sent:
            self._sent = digest
            self._cursor.event = self._context.store.last_event_id(job.id)
            yield Event("job", job, str(self._cursor))

    def end(self) -> Iterator[Event]:
        record = self._context.store.job(self.job_id) if self._with_result else None
        if record is not None and (data := self._small_result(record)):
            yield Event("result", SmallResult.model_construct(data=data))
        job = self._job()
        if job is not None:
            yield Event("end", job, str(self._cursor))

    def _small_result(self, record: JobRecord) -> bytes:
        """Return a job's result, if it has one that is small."""
        result = record.result
        if record.state is not JobState.SUCCEEDED or result is None or result.size_bytes > SMALL_RESULT_BYTES:
            return b""
        if self._context.store.blobs.size(record.owner, result.sha256) is None:
            return b""
        try:
            return self._context.blobs.path(result.sha256).read_bytes()
        except OSError:  # GET api/jobs/ID/result tells why.
            return b""

    def output(self, *, final: bool = False) -> Iterator[Event]:
        """Yield new output, one event for each stream."""
        sizes, offsets = self._sizes(), self._cursor.offsets
        grown = [stream for stream, size in sizes.items() if size > offsets.get(stream, 0)]
        for stream in sorted(grown, key=_order):
            offset = offsets.get(stream, 0)
            if stream.startswith("display-"):
                yield from self._displays(stream, sizes[stream], final)
                continue
            event = self._piece(stream, offset, sizes[stream], final)
            if event is not None:
                yield event

    def _sizes(self) -> Mapping[str, int]:
        """Return the streams' sizes, as far as this feed yields them."""
        return self._context.logs.readable(self.job_id, self._cursor.attempt)

    def _piece(self, stream: str, offset: int, size: int, final: bool) -> Event | None:
        if not stream.startswith("rank-"):
            return self._records(stream, offset, size, final)
        limits = self._context.limits
        skipped = size - offset - limits.tail_bytes if size - offset > limits.lag_bytes else 0
        start = offset + skipped
        data = self._context.logs.read(
            self.job_id, self._cursor.attempt, stream, start, min(size - start, limits.lag_bytes)
        )
        if skipped:
            cut = line_start(data)
            data, start, skipped = data[cut:], start + cut, skipped + cut
        return self._log(stream, start, data, skipped, final)

    def _log(self, stream: str, start: int, data: bytes, skipped: int, final: bool) -> Event | None:
        text, used = whole_text(data, final=final)
        if not used:
            return None
        self._cursor.offsets[stream] = start + used
        chunk = LogChunk(
            stream=stream,
            offset=start,
            size_bytes=used,
            text=text,
            skipped_bytes=skipped,
            attempt=self._cursor.attempt,
        )
        return Event("log", chunk, str(self._cursor))

    def _displays(self, stream: str, size: int, final: bool) -> Iterator[Event]:
        """Yield all new displays of a rank: whole lines, none is skipped."""
        offsets, attempt = self._cursor.offsets, self._cursor.attempt
        most = self._context.limits.displays_bytes
        used = 1
        while used and (offset := offsets.get(stream, 0)) < size:
            data = self._context.logs.read(self.job_id, attempt, stream, offset, min(size - offset, most))
            # A line as long as one read would otherwise block the stream for ever.
            displays, used = whole_lines(Display, data, final=final or len(data) == most)
            offsets[stream] = offset + used
            if displays:
                rank = int(stream.removeprefix("display-"))
                message = Displays(rank=rank, attempt=attempt, displays=displays)
                yield Event("displays", message, str(self._cursor))

    def _records(self, stream: str, offset: int, size: int, final: bool) -> Event | None:
        """Return new records. A reader that is far behind gets the news of media, and the last others."""
        limits, logs, attempt = self._context.limits, self._context.logs, self._cursor.attempt
        start = max(offset, size - _RECORDS_BYTES)
        data = logs.read(self.job_id, attempt, stream, start, size - start)
        if start > offset:
            start, data = start + (cut := line_start(data)), data[cut:]
        data = data if final else data[: data.rfind(b"\n") + 1]
        self._cursor.offsets[stream] = start + len(data)
        media, others = _apart(data)
        if len(others) > limits.lag_bytes:
            others = others[-limits.tail_bytes :]
            others = others[line_start(others) :]
        records, _ = whole_lines(Record, others, final=True)
        if not (records or media):
            return None
        known = tuple(record for record in records if record.kind in _FIRST_KINDS)
        more = (*media, *(record for record in records if record.kind not in _FIRST_KINDS))
        return Event("records", Records(records=known, more=more), str(self._cursor))


def _order(stream: str) -> tuple[int, int]:
    kind, _, number = stream.partition("-")
    # Displays come before the output that refers to them.
    return ("display", "rank", "records", "agent").index(kind), int(number or 0)


# Cuts bytes of a stream at the ends of characters and lines; pure.


def whole_text(data: bytes, *, final: bool) -> tuple[str, int]:
    """Return the text of `data`, and the number of bytes used.

    A character that is cut at the end is left for later, unless `final`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=final)
    return text, len(data) - len(decoder.getstate()[0])


def line_start(data: bytes) -> int:
    """Return how many bytes to skip so that `data` starts at a line, or at least at a character."""
    found = data.find(b"\n", 0, _LINE_SEARCH_BYTES)
    if 0 <= found < len(data) - 1:
        return found + 1
    return next((at for at in range(min(4, len(data))) if not 0x80 <= data[at] < 0xC0), 0)


def whole_lines(kind: type[M], data: bytes, *, final: bool) -> tuple[tuple[M, ...], int]:
    """Return the messages in the complete lines of `data`, and the number of bytes used.

    A line that is not such a message (from a newer agent, for example) is skipped. Data without a line end is
    used if `final`, else it is left for later.
    """
    end = data.rfind(b"\n") + 1 or (len(data) if final else 0)
    messages = (_message(kind, line) for line in data[:end].splitlines() if line)
    return tuple(message for message in messages if message is not None), end


def _apart(data: bytes) -> tuple[list[Record], bytes]:
    """Return the news of media in some lines, and the other lines: a picture is as long as thousands."""
    if _IS_MEDIA not in data:
        return [], data
    media: list[Record] = []
    others: list[bytes] = []
    for line in data.splitlines(keepends=True):
        if _IS_MEDIA not in line[:_KIND_WITHIN]:
            others.append(line)
        elif (record := _message(Record, line)) is not None and record.media is not None:
            media.append(record.model_copy(update={"media": record.media.model_copy(update={"content": ""})}))
    return media, b"".join(others)


def _message(kind: type[M], line: bytes) -> M | None:
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None


@dataclass
class Cursor:
    """A reader's position in a job's events; the id of each server-sent event.

    event: id of the newest event of the job's history. attempt: its number; 0: none yet. offsets: the next
    byte of each stream of that attempt."""

    event: int = 0
    attempt: int = 0
    offsets: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse an id of an event; "" is the beginning. Raises ApiError (400)."""
        if not text:
            return cls()
        head, *parts = text.split(";")
        first, found = _HEAD.fullmatch(head + ";" + parts[0] if parts else ""), []
        if first is not None:
            found = [_PART.fullmatch(part) for part in parts[1:]]
        if first is None or not all(found):
            raise ApiError(
                400, "bad_cursor", f"{text[:80]!r} is no event id of a job", "leave it out to start anew"
            )
        offsets = {match[1]: int(match[2]) for match in found if match}
        return cls(int(first[1]), int(first[2]), offsets)

    def __str__(self) -> str:
        parts = (f"{stream}={offset}" for stream, offset in sorted(self.offsets.items()))
        return ";".join([f"E{self.event}", f"A{self.attempt}", *parts])

    def next_attempt(self, attempt: int) -> None:
        """Continue with the streams of a newer attempt."""
        self.attempt, self.offsets = attempt, {}
