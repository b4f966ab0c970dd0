"""A data set on disk: reads and writes pieces of its byte stream; a piece maps to parts of its files."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from minicluster.wire import DataManifest

Stat = tuple[int, int, int]
"""A file's size in bytes, mtime and ctime in ns. Any write to the file changes them."""
_FOLDER, _SEALED_FOLDER, _OPEN_FILE = 0o755, 0o555, 0o644


@dataclass(frozen=True)
class Segment:
    """A part of a piece: `length` bytes of file number `file`, from `offset` on."""

    file: int
    offset: int
    length: int


class DataTree:
    """The files of a data set below `root`. Only the data set agent writes them; methods block.

    fresh: nothing was written there before. Else a file is replaced as a whole, since ranks may read it.
    """

    def __init__(self, root: Path, manifest: DataManifest, *, fresh: bool = False) -> None:
        self.root = root
        self._fresh = fresh
        self._files = manifest.files
        self._pieces = manifest.pieces
        self._file_starts = [0, *accumulate(file.size_bytes for file in manifest.files)]
        self._piece_starts = [0, *accumulate(piece.size_bytes for piece in manifest.pieces)]

    def segments(self, piece: int) -> Iterator[Segment]:
        """Yield the file segments of a piece; empty files have none."""
        at, end = self._piece_starts[piece], self._piece_starts[piece + 1]
        file = bisect_right(self._file_starts, at) - 1
        while at < end:
            upto = min(end, self._file_starts[file + 1])
            if upto > at:
                yield Segment(file, at - self._file_starts[file], upto - at)
            at, file = upto, file + 1

    def is_sound(self, piece: int) -> bool:
        """Return whether a piece on disk has the right hash."""
        digest = hashlib.sha256()
        try:
            for segment in self.segments(piece):
                digest.update(self._read(segment))
        except OSError:
            return False
        return digest.hexdigest() == self._pieces[piece].sha256

    def write(self, piece: int, data: bytes | memoryview) -> None:
        """Write a piece into its files."""
        view, at = memoryview(data), 0
        for segment in self.segments(piece):
            part = view[at : at + segment.length]
            at += segment.length
            whole = segment.length == self._files[segment.file].size_bytes
            if whole and not self._fresh:
                self._replace(segment.file, part)
            else:
                mode = self._mode(segment.file) if whole else _OPEN_FILE
                self._write(self._path(segment.file), mode, part, segment.offset)

    def _replace(self, number: int, data: memoryview) -> None:
        temporary = f"{self.root}.{number}.new"
        self._write(temporary, _OPEN_FILE, data, 0)
        os.chmod(temporary, self._mode(number))  # noqa: PTH101 - once per file
        os.replace(temporary, self._path(number))  # noqa: PTH105 - once per file

    def _read(self, segment: Segment) -> bytes:
        with open(self._path(segment.file), "rb", buffering=0) as file:  # noqa: PTH123 - once per file
            file.seek(segment.offset)
            return file.read(segment.length)

    def _write(self, path: str, mode: int, data: memoryview, offset: int) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, mode)
        try:
            while data:
                written = os.pwrite(descriptor, data, offset)
                data, offset = data[written:], offset + written
        finally:
            os.close(descriptor)

    def open(self) -> None:
        """Create all folders and empty files, and make files writable."""
        for folder in self._folders():
            folder.mkdir(mode=_FOLDER, exist_ok=True)
            folder.chmod(_FOLDER)
        for number, file in enumerate(self._files):
            if not file.size_bytes and self._stat(number) is None:
                self._replace(number, memoryview(b""))
            path = Path(self._path(number))
            if self._is_in_parts(number) and path.exists():
                path.chmod(_OPEN_FILE)
                os.truncate(path, min(path.stat().st_size, file.size_bytes))

    def seal(self) -> None:
        """Make files and folders read-only."""
        for number in range(len(self._files)):
            if self._is_in_parts(number):
                Path(self._path(number)).chmod(self._mode(number))
        for folder in self._folders():
            folder.chmod(_SEALED_FOLDER)

    def stats(self) -> list[Stat | None]:
        """Return each file's Stat, which shows whether it was touched; None if it is missing or wrong."""
        return [self._stat(number) for number in range(len(self._files))]

    def touching(self, files: Collection[int]) -> list[int]:
        """Return the pieces that overlap any of these files."""
        found: set[int] = set()
        for number in files:
            start, end = self._file_starts[number], self._file_starts[number + 1]
            if end > start:
                last = bisect_right(self._piece_starts, end - 1)
                found |= set(range(bisect_right(self._piece_starts, start) - 1, last))
        return sorted(found)

    def _stat(self, number: int) -> Stat | None:
        try:
            found = os.lstat(self._path(number))
        except OSError:
            return None
        if found.st_size != self._files[number].size_bytes or found.st_nlink != 1:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _folders(self) -> list[Path]:
        """Return all folders, parents first."""
        names = {file.path.rpartition("/")[0] for file in self._files}
        for name in list(names):
            parts = name.split("/")
            names |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        return [self.root, *(self.root / name for name in sorted(names - {""}))]

    def _is_in_parts(self, number: int) -> bool:
        """Return whether a file spans more than one piece."""
        return len(self.touching([number])) > 1

    def _mode(self, number: int) -> int:
        return 0o555 if self._files[number].executable else 0o444

    def _path(self, number: int) -> str:
        return f"{self.root}/{self._files[number].path}"
