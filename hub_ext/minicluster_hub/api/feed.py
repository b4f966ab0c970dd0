"""The events of one job for one reader: what is new since its cursor, bounded however far it lags."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from minicluster.wire import Display, Displays, Job, LogChunk, Record, Records
from minicluster_hub.web.context import Context
from minicluster_hub.api.cursor import Cursor
from minicluster_hub.api.pieces import line_start, whole_lines, whole_text
from minicluster_hub.jobs.records import JobRecord


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. data: a message, or its JSON. `cursor` is where the reader stands after it."""

    name: str
    data: BaseModel | str
    cursor: str = ""

    def json(self) -> str:
        return self.data if isinstance(self.data, str) else self.data.model_dump_json()


class JobFeed:
    """Reads the store and the logs; remembers what its reader has got in `cursor`."""

    def __init__(self, context: Context, record: JobRecord, cursor: Cursor) -> None:
        self._context = context
        self._cursor = cursor
        self.job_id = record.id
        self._take(record)
        self._told = b""
        if not cursor.attempt:
            cursor.next_attempt(min(1, record.attempts))

    @property
    def over(self) -> bool:
        """Whether the job has ended: its streams grow no more."""
        return self._over

    def _take(self, record: JobRecord) -> None:
        """Keep of a record what is needed: there are hundreds of readers, and records may be large."""
        self._attempts, self._over = record.attempts, record.state.terminal

    def _job(self) -> Job | None:
        """Read the job again; None if it is gone."""
        record = self._context.store.job(self.job_id)
        if record is None:
            return None
        self._take(record)
        return self._context.board.job(record)

    def news(self) -> Iterator[Event]:
        """Read the job again; yield it if its owner sees a change.

        What an attempt printed last comes before what the next one prints, and before the news of it.
        """
        job = self._job()
        while self._attempts > self._cursor.attempt:
            yield from self.output(final=True)
            self._cursor.next_attempt(self._cursor.attempt + 1)
        told = hashlib.sha256(job.model_dump_json().encode()).digest() if job else self._told
        if job and told != self._told:
            self._told = told
            self._cursor.event = self._context.store.last_event_id(job.id)
            yield Event("job", job, str(self._cursor))

    def end(self) -> Iterator[Event]:
        job = self._job()
        if job is not None:
            yield Event("end", job, str(self._cursor))

    def output(self, *, final: bool = False) -> Iterator[Event]:
        """Yield what the streams have more, one event for each of them."""
        sizes, offsets = self._context.logs.readable(self.job_id, self._cursor.attempt), self._cursor.offsets
        grown = [stream for stream, size in sizes.items() if size > offsets.get(stream, 0)]
        for stream in sorted(grown, key=_order):
            offset = offsets.get(stream, 0)
            if stream.startswith("display-"):
                yield from self._displays(stream, sizes[stream], final)
                continue
            event = self._piece(stream, offset, sizes[stream], final)
            if event is not None:
                yield event

    def _piece(self, stream: str, offset: int, size: int, final: bool) -> Event | None:
        limits = self._context.limits
        skipped = size - offset - limits.tail_bytes if size - offset > limits.lag_bytes else 0
        start = offset + skipped
        data = self._context.logs.read(
            self.job_id, self._cursor.attempt, stream, start, min(size - start, limits.lag_bytes)
        )
        if skipped:
            cut = line_start(data)
            data, start, skipped = data[cut:], start + cut, skipped + cut
        if stream.startswith("rank-"):
            return self._log(stream, start, data, skipped, final)
        return self._records(stream, start, data, final)

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
        """Yield all that a rank displayed since: whole lines, none of which is left out."""
        offsets, attempt = self._cursor.offsets, self._cursor.attempt
        most = self._context.limits.displays_bytes
        used = 1
        while used and (offset := offsets.get(stream, 0)) < size:
            data = self._context.logs.read(self.job_id, attempt, stream, offset, min(size - offset, most))
            # A line as long as all that is read at once would hold up the stream for ever.
            displays, used = whole_lines(Display, data, final=final or len(data) == most)
            offsets[stream] = offset + used
            if displays:
                rank = int(stream.removeprefix("display-"))
                told = Displays(rank=rank, attempt=attempt, displays=displays)
                yield Event("displays", told, str(self._cursor))

    def _records(self, stream: str, start: int, data: bytes, final: bool) -> Event | None:
        # A line as long as all that is read at once would hold up the stream for ever.
        final = final or (len(data) >= self._context.limits.tail_bytes and b"\n" not in data)
        records, used = whole_lines(Record, data, final=final)
        self._cursor.offsets[stream] = start + used
        return Event("records", Records(records=records), str(self._cursor)) if records else None


def _order(stream: str) -> tuple[int, int]:
    kind, _, number = stream.partition("-")
    # What was displayed is there before the output that says where.
    return ("display", "rank", "records", "agent").index(kind), int(number or 0)
