"""A result as a file, written and read piece by piece: it may be larger than the memory that is left.

The bytes are those of `payload.ResultPayload`. The head comes first and tells sizes that are known
last, so its place is kept free and filled up with spaces.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from . import pickling
from .payload import MAGIC, LeftBehind, PayloadDamaged, left_from_bytes, left_to_bytes
from .pickler import ANY_READER, Reader
from .versions import against_code
from .wire import Versions

_HEAD_BYTES = 500
_START = len(MAGIC) + 8 + _HEAD_BYTES


def write_result_file(
    path: Path,
    namespace: dict[str, Any],
    names: Iterable[str],
    value: Any,
    limit_bytes: int,
    at_home: Collection[str] = frozenset(),
    absent: Iterable[LeftBehind] = (),
    reader: Reader = ANY_READER,
) -> None:
    """Pickle what goes back (see `pickling.write_result`); the file is there as a whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w+b") as file:
            file.seek(_START)
            size, left = pickling.write_result(file, namespace, names, value, limit_bytes, at_home, reader)
            value_size = file.tell() - _START - size
            last = left_to_bytes((*left, *absent))
            file.write(last)
            file.seek(0)
            file.write(_head({"names": size, "value": value_size, "left_behind": len(last)}))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _head(sections: dict[str, int]) -> bytes:
    told = json.dumps({"kind": "result", "python": platform.python_version(), "sections": sections}).encode()
    return MAGIC + _HEAD_BYTES.to_bytes(8, "big") + told.ljust(_HEAD_BYTES)


class ResultFile:
    """Reads a result; its pickles are read from the file as they are opened."""

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
        self._places: dict[str, tuple[int, int]] = {}
        end = 12 + size
        for name, count in sizes.items():
            self._places[name] = end, count
            end += count
        if end != file.seek(0, os.SEEK_END):
            raise PayloadDamaged(f"the payload has {file.tell()} bytes, its head says {end}")

    def open(self, section: str, namespace: dict[str, Any]) -> dict[str, Any]:
        """Unpickle a section, "names" or "value"; an empty one has no names.

        Raises ForeignCode when another Python made it and it holds code.
        """
        start, size = self._places[section]
        self._file.seek(start)
        foreign = against_code(Versions(python=platform.python_version()), Versions(python=self.python)) != ""
        return pickling.load(self._file, namespace, foreign) if size else {}

    def left_behind(self) -> tuple[LeftBehind, ...]:
        start, size = self._places["left_behind"]
        self._file.seek(start)
        return left_from_bytes(self._file.read(size))
