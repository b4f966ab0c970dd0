"""What a published layer may hold: it was made by a user's own code, and others will run in it."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from minicluster.wire import LAYER_ROOT, Recipe

_WHITEOUT = ".wh."
_SPECIAL_BITS = 0o7000
_PIECE_BYTES = 1 << 20


class LayerRefused(Exception):
    """A layer that does not become an image; the message is one sentence."""


class _Counted:
    """The unpacked bytes on their way, hashed, and no more than so many."""

    def __init__(self, file: BinaryIO, limit_bytes: int) -> None:
        self._file = file
        self._left = limit_bytes
        self.sha256 = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise LayerRefused("the layer is larger than this cluster takes (image_limit_bytes)")
        self.sha256.update(data)
        return data


def check_layer(path: Path, recipe: Recipe, limit_bytes: int) -> None:
    """Raise LayerRefused unless the file is the recipe's layer and adds files to the environment only."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if (found, path.stat().st_size) != (recipe.layer_sha256, recipe.layer_bytes):
        raise LayerRefused("the layer is not the one that its recipe tells of")
    try:
        with gzip.open(path) as unpacked:
            counted = _Counted(cast(BinaryIO, unpacked), limit_bytes)
            _check_members(counted)
            while counted.read(_PIECE_BYTES):
                pass
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise LayerRefused(f"the layer is no archive that can be read ({error})") from error
    if counted.sha256.hexdigest() != recipe.diff_sha256:
        raise LayerRefused("the layer unpacked is not what its recipe tells of")


def _check_members(file: _Counted) -> None:
    with tarfile.open(fileobj=cast(BinaryIO, file), mode="r|") as archive:
        for member in archive:
            why = _why_not(member)
            if why:
                raise LayerRefused(f"the layer's {member.name[:200]!r} {why}")


def _why_not(member: tarfile.TarInfo) -> str:
    """Return why an entry may not be in a layer, or nothing."""
    checks: tuple[tuple[bool, Callable[[], str]], ...] = (
        (not _inside(member.name), lambda: f"is not below {LAYER_ROOT}"),
        (PurePosixPath(member.name).name.startswith(_WHITEOUT), lambda: "would remove a file of the base"),
        (not (member.isreg() or member.isdir() or member.issym()), lambda: "is no file, folder or link"),
        (bool(member.mode & _SPECIAL_BITS), lambda: f"has the mode {member.mode:o}"),
        ((member.uid, member.gid) != (0, 0), lambda: "does not belong to root"),
        (member.issym() and not _leads_inside(member), lambda: f"leads to {member.linkname[:200]!r}"),
    )
    return next((why() for bad, why in checks if bad), "")


def _inside(name: str) -> bool:
    path, root = PurePosixPath(name), PurePosixPath(LAYER_ROOT)
    above = path in root.parents and str(path) != "."
    return ".." not in path.parts and not path.is_absolute() and (path.is_relative_to(root) or above)


def _leads_inside(member: tarfile.TarInfo) -> bool:
    """Tell whether a link stays in the environment, wherever it is read from."""
    if member.linkname.startswith("/"):
        return False
    depth = len(PurePosixPath(member.name).relative_to(LAYER_ROOT).parent.parts)
    for part in PurePosixPath(member.linkname).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return False
    return True
