"""A folder as a data set: its files in order, cut into pieces.

Small files are packed together. The end of a pack depends only on the names of nearby files. So adding,
changing or removing a file changes only its own pack, not all later ones.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from minicluster.errors import MiniclusterError
from minicluster.wire import PIECE_BYTES, DataFile, relative_path
from minicluster.wire.files.data import FILES_MOST, MANIFEST_BYTES

_PACK_BYTES = PIECE_BYTES // 2
_ENDS_ONE_OF = 16
"""A pack that is large enough ends at one file in this many, chosen by the hash of the file's path."""
_LISTED_BYTES = 24
"""Size of a file's entry in the manifest, without its path."""


class FolderUnusable(MiniclusterError):
    """A folder that cannot be pushed as it is."""


@dataclass(frozen=True)
class FileSlice:
    """`length` bytes of a file from `offset` on."""

    file: DataFile
    offset: int
    length: int


Piece = tuple[FileSlice, ...]


@dataclass(frozen=True)
class Folder:
    """A scanned folder. left_out: entries that are not files, such as links to folders and sockets."""

    root: Path
    files: tuple[DataFile, ...]
    left_out: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def read(self, piece: Piece) -> bytes:
        """Return a piece's bytes. Raises FolderUnusable if a file changed since the scan."""
        return b"".join(self._read(part) for part in piece)

    def _read(self, part: FileSlice) -> bytes:
        path = self.root / part.file.path
        try:
            with path.open("rb", buffering=0) as file:
                whole = os.fstat(file.fileno()).st_size == part.file.size_bytes
                file.seek(part.offset)
                data = _all_of(file.read, part.length)
        except OSError as error:
            raise FolderUnusable(f"{path} cannot be read: {error.strerror}.") from error
        if not whole or len(data) != part.length:
            raise FolderUnusable(
                f"{path} changed while it was read.", "Push again when nothing writes there."
            )
        return data


def _all_of(read: Callable[[int], bytes | None], length: int) -> bytes:
    data = read(length) or b""
    while len(data) < length and (more := read(length - len(data))):
        data += more
    return data


def scan(root: Path) -> Folder:
    """Return the files of a folder; links to files count as files. Raises FolderUnusable."""
    if not root.is_dir():
        raise FolderUnusable(f"{root} is no folder.", "Like this: %distribute data push DIR --name NAME")
    files: list[DataFile] = []
    left_out: list[str] = []
    try:
        _walk(root, "", files, left_out)
    except OSError as error:
        raise FolderUnusable(f"{error.filename or root} cannot be read: {error.strerror}.") from error
    if not files:
        raise FolderUnusable(f"{root} holds no files.")
    _check_count(root, files)
    return Folder(root, tuple(sorted(files, key=lambda file: file.path)), tuple(left_out))


def _walk(folder: Path, prefix: str, files: list[DataFile], left_out: list[str]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                _walk(Path(entry.path), f"{path}/", files, left_out)
            elif entry.is_file():
                found = entry.stat()
                files.append(DataFile(_checked(path), found.st_size, bool(found.st_mode & 0o100)))
            else:
                left_out.append(path)


def _checked(path: str) -> str:
    try:
        return relative_path(path)
    except UnicodeEncodeError:
        raise FolderUnusable(
            f"The name of {os.fsencode(path)!r} is not in UTF-8.", "Rename it, then push again."
        ) from None
    except ValueError as error:
        raise FolderUnusable(
            f"{path[:80]!r}... cannot be pushed: {error}.", "Give its folders shorter names, then push again."
        ) from None


def _check_count(root: Path, files: list[DataFile]) -> None:
    """Raise FolderUnusable if the job service would refuse the manifest."""
    listed_bytes = sum(len(file.path.encode()) + _LISTED_BYTES for file in files)
    if len(files) > FILES_MOST or listed_bytes > MANIFEST_BYTES:
        raise FolderUnusable(
            f"{root} holds {len(files):,} files, and the list of them is {listed_bytes:,} bytes: a data set "
            f"has at most {FILES_MOST:,} files and {MANIFEST_BYTES:,} bytes of that.",
            "Pack small files into larger ones (tar), or push its folders one by one.",
        )


def cut(files: tuple[DataFile, ...]) -> Iterator[Piece]:
    """Divide these files into pieces; yield them in order."""
    pack: list[FileSlice] = []
    size = 0
    for file in files:
        if pack and size + file.size_bytes > PIECE_BYTES:
            yield tuple(pack)
            pack, size = [], 0
        if file.size_bytes > PIECE_BYTES:
            for offset in range(0, file.size_bytes, PIECE_BYTES):
                yield (FileSlice(file, offset, min(PIECE_BYTES, file.size_bytes - offset)),)
        elif file.size_bytes:
            pack.append(FileSlice(file, 0, file.size_bytes))
            size += file.size_bytes
            if size >= _PACK_BYTES and zlib.crc32(file.path.encode()) % _ENDS_ONE_OF == 0:
                yield tuple(pack)
                pack, size = [], 0
    if pack:
        yield tuple(pack)
