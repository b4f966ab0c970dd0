"""Reads new records of a job's streams into its file of series. Blocking; for worker threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pydantic import ValidationError

from minicluster.wire import Record
from minicluster_hub.runs.media import NewMedia, Place
from minicluster_hub.runs.series import Batch, SeriesFile
from minicluster_hub.runs.step_times import NewTimes
from minicluster_hub.storage.logs import JobLogs

_PIECE_BYTES = 1 << 20
_NAME_CHARS = 200
_KIND_WITHIN = 100
_KINDS = (b'"kind":"log"', b'"kind":"media"', b'"kind":"speed"')


def read_records(logs: JobLogs, job_id: int, attempts: int, file: SeriesFile) -> int:
    """Append the records that the file does not have yet; return how many bytes of them were read.

    Lines that no rank of ours writes are skipped. An incomplete last line waits for its rest.
    """
    offsets, read = file.offsets(), 0
    for attempt in range(1, attempts + 1):
        for stream, size in logs.readable(job_id, attempt).items():
            if not stream.startswith(("records", "agent-")):
                continue
            offset = offsets.get((attempt, stream), 0)
            while offset < size:
                piece = logs.read(job_id, attempt, stream, offset, _PIECE_BYTES)
                end = piece.rfind(b"\n") + 1
                if not end and len(piece) < _PIECE_BYTES:
                    break
                end = end or len(piece)  # no line of ours is that long
                batch = Batch(attempt, offsets={stream: offset + end})
                _collect(batch, Place(attempt, stream, offset, 0), piece[:end].splitlines(keepends=True))
                file.append(batch)
                offset, read = offset + end, read + end
    return read


def _collect(batch: Batch, begin: Place, lines: Iterable[bytes]) -> None:
    """Add what is in some lines, the first of which begins at a place."""
    offset = begin.offset
    for line in lines:
        place = replace(begin, offset=offset, length=len(line))
        offset += len(line)
        record = _record(line) if any(kind in line[:_KIND_WITHIN] for kind in _KINDS) else None
        if record is None:
            continue
        if record.kind == "log":
            for name, value in record.values.items():
                if 0 < len(name) <= _NAME_CHARS:
                    batch.points.setdefault((name, record.rank), []).append((record.step, record.at, value))
        elif (media := NewMedia.of(record, place)) is not None:
            batch.media.append(media)
        elif (times := NewTimes.of(record)) is not None:
            batch.times.append(times)


def _record(line: bytes) -> Record | None:
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None
