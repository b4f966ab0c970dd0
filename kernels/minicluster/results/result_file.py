"""Writes and reads a result file piece by piece, since it may be larger than free memory.

Like a payload, it has a head and sections; `body` is one pickle of all returned objects. The head comes
first, but its sizes are known only at the end. So it has reserved space, padded with blanks.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from minicluster.capture.payload import MAGIC, LeftBehind, PayloadDamaged, left_from_bytes, left_to_bytes
from minicluster.capture.versions import code_refusal
from minicluster.changes.continued_pickle import read_body
from minicluster.changes.returning import ResultWriter, ReturnRequest
from minicluster.changes.shared_objects import SharedObjects
from minicluster.pickling import pickling
from minicluster.wire import Versions

_HEAD_BYTES = 500
_START = len(MAGIC) + 8 + _HEAD_BYTES


def write_result_file(
    path: Path,
    back: ResultWriter,
    request: ReturnRequest,
    absent: Iterable[LeftBehind] = (),
    notes_for: Callable[[Collection[str]], Sequence[str]] = lambda stayed: (),
) -> None:
    """Write the returned objects to a file, atomically.

    absent: further names to list as left behind.
    notes_for: given the names left behind, returns sentences for the notebook.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w+b") as file:
            file.seek(_START)
            left = (*back.write(file, request), *absent)
            body_size = file.tell() - _START
            last = left_to_bytes(left)
            words = json.dumps(list(notes_for([item.name for item in left]))).encode()
            # The job service reads these, which never opens a pickle.
            names = json.dumps(sorted({*request.names} - {item.name for item in left})).encode()
            file.write(last + words + names)
            file.seek(0)
            sections = {
                "body": body_size,
                "left_behind": len(last),
                "said": len(words),
                "returned": len(names),
            }
            file.write(_head(sections, back.has_shared_objects))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _head(sections: dict[str, int], has_shared_objects: bool) -> bytes:
    head = {
        "kind": "result",
        "python": platform.python_version(),
        "refers": has_shared_objects,
        "sections": sections,
    }
    encoded = json.dumps(head).encode()
    return MAGIC + _HEAD_BYTES.to_bytes(8, "big") + encoded.ljust(_HEAD_BYTES)


class ResultFile:
    """Reads a result. `open` reads the pickles directly from the file."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises PayloadDamaged."""
        self._file = file
        file.seek(0)
        start = file.read(len(MAGIC) + 8)
        if start[:4] != MAGIC or len(start) < 12:
            raise PayloadDamaged(f"not a Minicluster payload: it starts with {start[:4]!r}")
        size = int.from_bytes(start[4:], "big")
        try:
            head = json.loads(file.read(size))
            sizes: dict[str, int] = head["sections"]
        except (ValueError, KeyError) as error:
            raise PayloadDamaged(f"the payload's head cannot be read: {error}") from error
        self.python = str(head.get("python", ""))
        self.has_shared_objects = bool(head.get("refers"))
        self._places: dict[str, tuple[int, int]] = {}
        end = 12 + size
        for name, count in sizes.items():
            self._places[name] = end, count
            end += count
        if end != file.seek(0, os.SEEK_END):
            raise PayloadDamaged(f"the payload has {file.tell()} bytes, its head says {end}")

    def open(
        self, namespace: dict[str, Any], known: SharedObjects | None, late: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Unpickle the result; see `continued_pickle.read_body`.

        Raises ForeignCode if it contains code and another version of Python wrote it.
        """
        foreign = code_refusal(Versions(python=platform.python_version()), Versions(python=self.python)) != ""
        if "body" in self._places:
            self._file.seek(self._places["body"][0])
            return read_body(self._file, namespace, foreign, known, late)
        return self._open_older(namespace, foreign), {}

    def _open_older(self, namespace: dict[str, Any], foreign: bool) -> dict[str, Any]:
        """Read a result of an earlier release, which returned names only."""
        body: dict[str, Any] = {"names": {}, "value": {}, "changes": [], "rebound": []}
        for section in ("names", "value"):
            start, size = self._places[section]
            self._file.seek(start)
            if size:
                body[section] = pickling.load(self._file, namespace, foreign)
        return body

    def left_behind(self) -> tuple[LeftBehind, ...]:
        return left_from_bytes(self._bytes("left_behind"))

    def notes(self) -> tuple[str, ...]:
        return tuple(json.loads(self._bytes("said"))) if "said" in self._places else ()

    def _bytes(self, section: str) -> bytes:
        start, size = self._places[section]
        self._file.seek(start)
        return self._file.read(size)
