"""Large ranges of a pickle as separate parts: a part that did not change is not sent again.

The pickle does not change, byte for byte: a part is a range of it, and is inserted again at its position.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from minicluster.pickling.sizes import MOST_PARTS

PART_BYTES = 1 << 20
"""From this size on, a range becomes a part."""

Data = bytes | memoryview
_BUFFER_BYTES = 1 << 16
_BYTEARRAY8, _NEXT_BUFFER = b"\x96", b"\x97"
"""Opcodes of pickles: a bytearray, with its size and content; the next out-of-band buffer."""


class Damaged(ValueError):
    """A part does not fit its place in the pickle."""


class Form(StrEnum):
    """How a part may be loaded.

    INLINE: only as bytes of the pickle. BUFFER: as an out-of-band buffer, in any writable memory.
    FIXED: the same; the memory is never resized.
    """

    INLINE = "inline"
    BUFFER = "buffer"
    FIXED = "fixed"


@dataclass(frozen=True)
class Fixed:
    """Memory that is used without a copy, since it is never resized."""

    memory: memoryview


@dataclass(frozen=True)
class PartReference:
    """A part that is stored elsewhere. at: its offset in the pickle, in bytes."""

    at: int
    sha256: str
    form: Form = Form.INLINE


@dataclass(frozen=True)
class PicklePart:
    """A range of a pickle. at: its offset in the pickle, in bytes."""

    at: int
    data: memoryview
    form: Form = Form.INLINE

    @property
    def size_bytes(self) -> int:
        return self.data.nbytes


class PartsFile:
    """A file to write a pickle to. It keeps large ranges as parts, without copying them."""

    def __init__(self) -> None:
        self._small: list[bytes] = []
        self._at = 0
        self.parts: list[PicklePart] = []

    def write(self, data: Any) -> int:
        # Large buffers arrive as PickleBuffer, which keeps their memory alive.
        view = pickle.PickleBuffer(data).raw()
        if view.nbytes >= PART_BYTES and len(self.parts) < MOST_PARTS:
            self.parts.append(PicklePart(self._at, view, _form(data)))
        else:
            self._small.append(view.tobytes())
        self._at += view.nbytes
        return view.nbytes

    @property
    def small(self) -> bytes:
        """The pickle without its parts."""
        return b"".join(self._small)


def _form(data: Any) -> Form:
    if type(data) is not pickle.PickleBuffer or (view := memoryview(data)).readonly:
        return Form.INLINE
    return Form.FIXED if getattr(view.obj, "fixed", False) else Form.BUFFER


def inline_parts(small: bytes, parts: Iterable[tuple[int, Data]]) -> bytes:
    """Return the whole pickle. parts: offset and bytes of each, in order."""
    pieces: list[Data] = []
    taken = at = 0
    for begin, data in parts:
        pieces += [small[taken : taken + begin - at], data]
        taken += begin - at
        at = begin + len(data)
    return b"".join([*pieces, small[taken:]])


@dataclass(frozen=True)
class OutOfBandPickle:
    """A pickle and its out-of-band buffers, as an unpickler takes them."""

    file: io.BufferedReader
    buffers: Sequence[memoryview | Fixed] = ()


def to_out_of_band(
    small: bytes, parts: Sequence[PartReference], memory: Callable[[str], memoryview]
) -> OutOfBandPickle:
    """Turn parts into out-of-band buffers, which are not copied, as far as their form allows.

    memory: returns a part's writable memory, given its SHA-256. Raises Damaged.
    """
    pieces: list[Data] = []
    buffers: list[memoryview | Fixed] = []
    taken = at = 0
    for part in parts:
        piece, data = small[taken : taken + part.at - at], memory(part.sha256)
        taken, at = taken + part.at - at, part.at + len(data)
        if part.form is Form.INLINE:
            pieces += [piece, data]
        else:
            pieces += [_without_head(piece, len(data)), _NEXT_BUFFER]
            buffers.append(Fixed(data) if part.form is Form.FIXED else data)
    pieces.append(small[taken:])
    return OutOfBandPickle(io.BufferedReader(_Pieces(iter(pieces)), _BUFFER_BYTES), buffers)


def _without_head(piece: bytes, size: int) -> bytes:
    head = _BYTEARRAY8 + size.to_bytes(8, "little")
    if not piece.endswith(head):
        raise Damaged(f"a part of {size} bytes is not what its pickle says")
    return piece.removesuffix(head)


class _Pieces(io.RawIOBase):
    """Reads pieces one after the other as one file."""

    def __init__(self, pieces: Iterator[Data]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def digests(parts: Sequence[PicklePart]) -> list[str]:
    """Return the parts' SHA-256, computed in threads: hashing releases Python's lock."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda part: hashlib.sha256(part.data).hexdigest(), parts))


def holders(
    names: Mapping[str, Any], sent: Mapping[str, int], parts_of: Callable[[Any], Iterable[str]]
) -> list[str]:
    """Return the names whose values have a part in `sent`, largest first.

    sent: sizes in bytes by SHA-256. parts_of: returns the SHA-256 of a value's parts.
    """
    sizes = {name: sum(sent.get(part, 0) for part in parts_of(value)) for name, value in names.items()}
    return sorted((name for name, size in sizes.items() if size), key=lambda name: -sizes[name])
