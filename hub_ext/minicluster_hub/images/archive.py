"""A layer's archive, read so strictly that an engine cannot understand it in another way.

Engines unpack it with a reader of their own. So whatever two readers could understand differently is refused:
only headers as publishing writes them are accepted. One entry is in memory at a time.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterator

Read = Callable[[int], bytes]

_MOST_RECORDS_BYTES = 10 << 10
_SKIP_BYTES = 1 << 20
_MAGIC = slice(257, 265)
_TYPE = slice(156, 157)
_UNUSED = slice(345, tarfile.BLOCKSIZE)
"""A prefix of the name, by some readers; times or more digits by others."""
_NUMBERS = (
    *(slice(100, 108), slice(108, 116), slice(116, 124)),  # mode, uid, gid
    *(slice(124, 136), slice(136, 148), slice(148, 156)),  # size, mtime, checksum
    *(slice(329, 337), slice(337, 345)),  # the device
)
_OCTAL = re.compile(rb"[0-7]*[ \0]*")
_LENGTH = re.compile(rb"[1-9][0-9]{0,4}")
_PLAIN = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)


class ArchiveRefused(Exception):
    """An archive is not accepted; the message continues "the layer's archive"."""


def entries(read: Read) -> Iterator[tarfile.TarInfo]:
    """Yield all entries: files, folders and links. Raises ArchiveRefused."""
    while any(block := _exactly(read, tarfile.BLOCKSIZE)):
        entry = _entry(block, read)
        yield entry
        _skip(read, entry.size)
    while rest := read(_SKIP_BYTES):
        if rest.count(0) != len(rest):
            raise ArchiveRefused("has something after its end")


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
        raise ArchiveRefused(f"holds {shown}, which is no file, folder or link")
    if entry.size and not entry.isreg():
        raise ArchiveRefused(f"gives a size for {shown}, which is no file")
    if entry.isdir():
        entry.name = entry.name.removesuffix("/")
    return entry


def _header(block: bytes) -> tarfile.TarInfo:
    """Return the entry of a header block, if all readers agree on it."""
    strange = block[_MAGIC] != tarfile.POSIX_MAGIC or any(block[_UNUSED])
    if strange or not all(_OCTAL.fullmatch(block[field]) for field in _NUMBERS):
        raise ArchiveRefused("has a header of another kind than publishing writes")
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
            raise ArchiveRefused(f"has a name that is not in UTF-8: {value[:200]!r}") from None
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
