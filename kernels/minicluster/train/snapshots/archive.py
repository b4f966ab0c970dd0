"""A snapshot as one stream of bytes (a tar file), read straight from its folder: no second copy is made."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from minicluster.train.snapshots.store import Entry

PIECE_BYTES = 1 << 20
_BLOCK = tarfile.BLOCKSIZE


class Archive:
    """Holds a snapshot's files open: that it is removed meanwhile does no harm. Raises OSError.

    The same snapshot always gives the same bytes.
    """

    def __init__(self, entry: Entry) -> None:
        self._open = ExitStack()
        self._files: list[tuple[bytes, Any, int]] = []
        try:
            for name in entry.names:
                self._add(entry.folder / name)
        except BaseException:
            self._open.close()
            raise
        self.size_bytes = sum(len(head) + _padded(size) for head, _, size in self._files) + 2 * _BLOCK

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for piece in self.pieces():
            digest.update(piece)
        return digest.hexdigest()

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes, in pieces of at most PIECE_BYTES."""
        for head, file, size in self._files:
            yield head
            file.seek(0)
            while piece := file.read(PIECE_BYTES):
                yield piece
            yield b"\0" * (_padded(size) - size)
        yield b"\0" * (2 * _BLOCK)

    def _add(self, path: Path) -> None:
        file = self._open.enter_context(path.open("rb"))
        size = path.stat().st_size
        info = tarfile.TarInfo(path.name)
        info.size, info.mode = size, 0o600
        self._files.append(
            (info.tobuf(tarfile.USTAR_FORMAT if size < 8 << 30 else tarfile.GNU_FORMAT), file, size)
        )


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
