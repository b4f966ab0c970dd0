"""Checks a published layer: a user's code made it, and other users' jobs will run on it."""

from __future__ import annotations

import gzip
import hashlib
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Set
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from minicluster.wire import LAYER_ROOT, Recipe, relative_path

_WHITEOUT = ".wh."
_SPECIAL_BITS = 0o7000
_FOLDER_MODE = 0o755
_MOST_ENTRIES = 1_000_000
_MOST_LINKS = 10_000

Read = Callable[[int], bytes]


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
        raise LayerRefused(f"the layer is not a readable archive ({error})") from error
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
    """Return why an entry is refused; "" if it is not. links: the names of the links before it."""
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
    """Return whether an entry is in the environment's folder, or is a folder above it."""
    try:
        return _above(entry) or relative_path(entry.name).startswith(f"{LAYER_ROOT}/")
    except ValueError:
        return False


def _above(entry: tarfile.TarInfo) -> bool:
    return entry.isdir() and f"{LAYER_ROOT}/".startswith(f"{entry.name}/")


def _leads_down(entry: tarfile.TarInfo) -> bool:
    """Return whether a link leads to its own folder or below.

    If all do, no chain of links leads out of the environment, even through links of lower layers.
    """
    target = PurePosixPath(entry.linkname)
    return not target.is_absolute() and ".." not in target.parts


def _through(entry: tarfile.TarInfo, links: Set[str]) -> bool:
    """Return whether an entry's path is one of these links or leads through one."""
    return any(path in links for path in accumulate(entry.name.split("/"), "{}/{}".format))


# Engines read archives with other code, which must find the same entries. So headers must have the form that
# publishing writes. Only one entry is in memory at a time.

_MOST_RECORDS_BYTES = 10 << 10
_SKIP_BYTES = 1 << 20
_MAGIC = slice(257, 265)
_TYPE = slice(156, 157)
_UNUSED = slice(345, tarfile.BLOCKSIZE)
"""Some readers parse this as a prefix of the name, others as times or further digits."""
_NUMBERS = (
    *(slice(100, 108), slice(108, 116), slice(116, 124)),  # mode, uid, gid
    *(slice(124, 136), slice(136, 148), slice(148, 156)),  # size, mtime, checksum
    *(slice(329, 337), slice(337, 345)),  # the device
)
_OCTAL = re.compile(rb"[0-7]*[ \0]*")
_LENGTH = re.compile(rb"[1-9][0-9]{0,4}")
_PLAIN = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)


class ArchiveRefused(Exception):
    """An archive is refused. The message continues "the layer's archive"."""


def entries(read: Read) -> Iterator[tarfile.TarInfo]:
    """Yield all entries: files, folders and links. Raises ArchiveRefused."""
    while any(block := _exactly(read, tarfile.BLOCKSIZE)):
        entry = _entry(block, read)
        yield entry
        _skip(read, entry.size)
    while rest := read(_SKIP_BYTES):
        if rest.count(0) != len(rest):
            raise ArchiveRefused("has data after its end")


def _entry(block: bytes, read: Read) -> tarfile.TarInfo:
    """Return the entry of a header and of the records before it."""
    entry, records = _header(block), dict[str, str]()
    if entry.type == tarfile.XHDTYPE:
        records = _records(_data(read, entry.size))
        entry = _header(_exactly(read, tarfile.BLOCKSIZE))
    entry.name = records.get("path", entry.name)
    entry.linkname = records.get("linkpath", entry.linkname)
    if "size" in records:
        entry.size = _size(records["size"])
    shown = repr(entry.name[:200])
    if entry.type not in _PLAIN:
        raise ArchiveRefused(f"contains {shown}, which is neither a file nor a folder nor a link")
    if entry.size and not entry.isreg():
        raise ArchiveRefused(f"gives a size for {shown}, which is not a file")
    if entry.isdir():
        entry.name = entry.name.removesuffix("/")
    return entry


def _header(block: bytes) -> tarfile.TarInfo:
    """Return the entry of a header block. Raises ArchiveRefused if other readers might find another one."""
    strange = block[_MAGIC] != tarfile.POSIX_MAGIC or any(block[_UNUSED])
    if strange or not all(_OCTAL.fullmatch(block[field]) for field in _NUMBERS):
        raise ArchiveRefused("has a header in a form that publishing does not write")
    try:
        entry = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise ArchiveRefused(f"has a header that cannot be read ({error})") from error
    entry.type = block[_TYPE]
    return entry


def _records(data: bytes) -> dict[str, str]:
    """Return the PAX records of one entry; only those that publishing writes are accepted."""
    found: dict[str, str] = {}
    while data:
        prefix = _LENGTH.match(data)
        length = int(prefix[0]) if prefix else 0
        record, data = data[:length], data[length:]
        name, _, value = record.partition(b" ")[2].removesuffix(b"\n").partition(b"=")
        if not (record.endswith(b"\n") and len(record) == length and value and b"\0" not in value):
            raise ArchiveRefused("has an extended header that cannot be read")
        if name not in (b"path", b"linkpath", b"size") or name.decode() in found:
            raise ArchiveRefused(
                f"has an extended header with {name[:40]!r}, which publishing does not write"
            )
        try:
            found[name.decode()] = value.decode()
        except UnicodeDecodeError:
            raise ArchiveRefused(f"has a name that is not UTF-8: {value[:200]!r}") from None
    return found


def _size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ArchiveRefused(f"gives {text[:40]!r} as the size of a file")
    return int(text)


def _data(read: Read, size: int) -> bytes:
    """Return the content of an extended header."""
    if size > _MOST_RECORDS_BYTES:
        raise ArchiveRefused(f"has an extended header of {size:,} bytes: more than {_MOST_RECORDS_BYTES:,}")
    return _exactly(read, _padded(size))[:size]


def _skip(read: Read, size: int) -> None:
    left = _padded(size)
    while left:
        left -= len(_exactly(read, min(left, _SKIP_BYTES)))


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _exactly(read: Read, size: int) -> bytes:
    data = read(size)
    if len(data) != size:
        raise ArchiveRefused("ends too early")
    return data
