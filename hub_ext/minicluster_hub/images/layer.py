"""What a published layer may hold: a user's own code made it, and others will run in it."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Set
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from minicluster.wire import LAYER_ROOT, Recipe, relative_path
from minicluster_hub.images.archive import ArchiveRefused, Read, entries

_WHITEOUT = ".wh."
_SPECIAL_BITS = 0o7000
_FOLDER_MODE = 0o755
_MOST_ENTRIES = 1_000_000
_MOST_LINKS = 10_000


class LayerRefused(Exception):
    """A layer cannot become an image; the message is one sentence."""


class _LimitedReader:
    """Reads unpacked bytes up to a limit, and hashes them."""

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
        raise LayerRefused("the layer is not the one that its recipe describes")
    try:
        with gzip.open(path) as unpacked:
            counted = _LimitedReader(cast(BinaryIO, unpacked), limit_bytes)
            _check_entries(counted.read)
    except ArchiveRefused as refused:
        raise LayerRefused(f"the layer's archive {refused}") from refused
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise LayerRefused(f"the layer is no archive that can be read ({error})") from error
    if counted.sha256.hexdigest() != recipe.diff_sha256:
        raise LayerRefused("the unpacked layer is not the one that its recipe describes")


def _check_entries(read: Read) -> None:
    links: set[str] = set()
    for count, entry in enumerate(entries(read), 1):
        if why := _why_not(entry, links):
            raise LayerRefused(f"the layer's {entry.name[:200]!r} {why}")
        if entry.issym():
            links.add(entry.name)
        if count > _MOST_ENTRIES or len(links) > _MOST_LINKS:
            raise LayerRefused(f"the layer has more than {_MOST_ENTRIES:,} files or {_MOST_LINKS:,} links")


def _why_not(entry: tarfile.TarInfo, links: Set[str]) -> str:
    """Return why an entry may not be in a layer; "" if it may. links: the names of the links before it."""
    if not _inside(entry):
        return f"is not below {LAYER_ROOT}"
    if f"/{_WHITEOUT}" in entry.name:
        return "would remove a file of the base"
    if entry.mode & _SPECIAL_BITS or (_above(entry) and entry.mode != _FOLDER_MODE):
        return f"has the mode {entry.mode:o}"
    if (entry.uid, entry.gid) != (0, 0):
        return "does not belong to root"
    if entry.issym() and not _leads_down(entry):
        return f"leads to {entry.linkname[:200]!r}"
    if links and _through(entry, links):
        return "lies below a link, or comes after one of its name"
    return ""


def _inside(entry: tarfile.TarInfo) -> bool:
    """Whether an entry is in the environment, or a folder that leads to it."""
    try:
        return _above(entry) or relative_path(entry.name).startswith(f"{LAYER_ROOT}/")
    except ValueError:
        return False


def _above(entry: tarfile.TarInfo) -> bool:
    return entry.isdir() and f"{LAYER_ROOT}/".startswith(f"{entry.name}/")


def _leads_down(entry: tarfile.TarInfo) -> bool:
    """Whether a link leads to its own folder or below.

    So chains of links never lead out of the environment, not even with links of the layers underneath.
    """
    target = PurePosixPath(entry.linkname)
    return not target.is_absolute() and ".." not in target.parts


def _through(entry: tarfile.TarInfo, links: Set[str]) -> bool:
    """Whether an entry's path is one of these links, or below one."""
    return any(path in links for path in accumulate(entry.name.split("/"), "{}/{}".format))
