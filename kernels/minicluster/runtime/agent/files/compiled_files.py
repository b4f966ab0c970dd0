"""The folder into which torch.compile writes, and its files as pieces of a compile cache.

Files are named by what they were compiled from, so that a file that is there never changes.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import time
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from minicluster.wire.files.artifacts import relative_path

FOLDER = "compiled"
_UNFINISHED_S = 10.0
_HERE = b"[COMPILE-CACHE-FOLDER]"
"""Takes the place of the folder's path in what is sent: Triton lists its files by their whole paths."""
_TRITON_LIST = "__grp__"
_TEMPORARY = (".", "tmp.")
_WRONG = (tarfile.TarError, zlib.error, EOFError, ValueError)


class PieceDamaged(Exception):
    """A piece of a compile cache cannot be read."""


def files_of(folder: Path) -> frozenset[str]:
    """Return what is compiled, as paths below the folder."""
    return frozenset(_files_of(folder))


def _files_of(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if _counts(name)]
        for name in filter(_counts, files):
            yield Path(place, name).relative_to(folder).as_posix()


def _counts(name: str) -> bool:
    """Return whether a name is that of something compiled: neither a lock nor a compiler's temporary file."""
    locks = name == "locks" or name.endswith(".lock")
    return not locks and not name.startswith(_TEMPORARY) and not name.endswith(("_CxxBuild", ".tmp"))


def entries_of(files: Iterable[str]) -> dict[str, list[str]]:
    """Return files by the digest of what they are: a graph or a kernel is a folder of several files."""
    entries: dict[str, list[str]] = {}
    for file in files:
        path = PurePosixPath(file)
        name = path.parent if len(path.parts) > 2 else path
        entries.setdefault(hashlib.sha256(str(name).encode()).hexdigest()[:16], []).append(file)
    return entries


def pack(folder: Path, files: Iterable[str], target: Path) -> None:
    """Write files as a piece. Raises OSError."""
    with tarfile.open(target, "w:gz", compresslevel=1) as archive:
        for file in sorted(files):
            path = folder / file
            data = path.read_bytes()
            if path.name.startswith(_TRITON_LIST):
                data = data.replace(bytes(folder), _HERE)
            member = tarfile.TarInfo(file)
            member.size, member.mode = len(data), path.stat().st_mode & 0o777
            archive.addfile(member, io.BytesIO(data))


def unpack(piece: Path, folder: Path) -> frozenset[str]:
    """Add a piece's files to the folder; return their paths. Raises PieceDamaged, OSError."""
    files: set[str] = set()
    try:
        with tarfile.open(piece, "r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None:
                    _add(folder, relative_path(member.name), content.read(), member.mode)
                    files.add(member.name)
    except _WRONG as error:
        raise PieceDamaged(str(error)) from error
    return frozenset(files)


def _add(folder: Path, file: str, data: bytes, mode: int) -> None:
    """Write a file, if it is not there: a rank may have it open."""
    path = folder / file
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    if path.name.startswith(_TRITON_LIST):
        data = data.replace(_HERE, bytes(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(data)
    temporary.chmod(mode & 0o755)
    temporary.replace(path)


def drop_unfinished(folder: Path, kept: Collection[str]) -> None:
    """Delete the newest files but those to be kept: a compiler was killed while it may have written them."""
    since = time.time() - _UNFINISHED_S
    for file in files_of(folder).difference(kept):
        path = folder / file
        if path.stat().st_mtime > since:
            path.unlink()
