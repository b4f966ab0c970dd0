"""Large ranges of a pickle as parts of their own: a part that did not change is not sent again.

The pickle itself stays as it is, byte for byte: a part is a range of it, and is put back where it was.
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
"""From this size on it is worth a file of its own."""

Data = bytes | memoryview
_BUFFER_BYTES = 1 << 16
_BYTEARRAY8, _NEXT_BUFFER = b"\x96", b"\x97"
"""Of pickles: bytes to be written to, after their number; and what is given beside the pickle instead."""


class Damaged(ValueError):
    """A part is not the one that its pickle names."""


class Form(StrEnum):
    """What a part may become.

    INLINE: nothing but the object that the pickle says. BUFFER: any memory that can be written to.
    FIXED: the same, and nobody changes its size.
    """

    INLINE = "inline"
    BUFFER = "buffer"
    FIXED = "fixed"


@dataclass(frozen=True)
class Fixed:
    """Memory to be used as it is, since nobody changes its size."""

    memory: memoryview


@dataclass(frozen=True)
class PartReference:
    """A part that is elsewhere. at: where it stands in the whole."""

    at: int
    sha256: str
    form: Form = Form.INLINE


@dataclass(frozen=True)
class PicklePart:
    """A range of a pickle. at: where it stands in the whole."""

    at: int
    data: memoryview
    form: Form = Form.INLINE

    @property
    def size_bytes(self) -> int:
        return self.data.nbytes


class PartsFile:
    """Takes a pickle as a file does, and keeps what is large apart, without a copy of it."""

    def __init__(self) -> None:
        self._small: list[bytes] = []
        self._at = 0
        self.parts: list[PicklePart] = []

    def write(self, data: Any) -> int:
        # The large ones come as PickleBuffer, which holds the memory that they are in.
        view = pickle.PickleBuffer(data).raw()
        if view.nbytes >= PART_BYTES and len(self.parts) < MOST_PARTS:
            self.parts.append(PicklePart(self._at, view, _form(data)))
        else:
            self._small.append(view.tobytes())
        self._at += view.nbytes
        return view.nbytes

    @property
    def small(self) -> bytes:
        """All but the parts."""
        return b"".join(self._small)


def _form(data: Any) -> Form:
    if type(data) is not pickle.PickleBuffer or (view := memoryview(data)).readonly:
        return Form.INLINE
    return Form.FIXED if getattr(view.obj, "fixed", False) else Form.BUFFER


def whole(small: bytes, parts: Iterable[tuple[int, Data]]) -> bytes:
    """Put parts back between what is small. parts: where each stands, and its bytes; in their order."""
    pieces: list[Data] = []
    taken = at = 0
    for begin, data in parts:
        pieces += [small[taken : taken + begin - at], data]
        taken += begin - at
        at = begin + len(data)
    return b"".join([*pieces, small[taken:]])


@dataclass(frozen=True)
class OutOfBandPickle:
    """A pickle, and the memory that is given beside it: what an unpickler takes."""

    file: io.BufferedReader
    buffers: Sequence[memoryview | Fixed] = ()


def beside(
    small: bytes, parts: Sequence[PartReference], memory: Callable[[str], memoryview]
) -> OutOfBandPickle:
    """Give parts as they are, as far as their form allows, instead of copying them out of the pickle.

    memory: a part's by its SHA-256, which can be written to. Raises Damaged.
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
    """Pieces one after the other, as a file."""

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
    """Return the parts' SHA-256: large ones are hashed beside each other, outside of Python's lock."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda part: hashlib.sha256(part.data).hexdigest(), parts))


def holders(
    names: Mapping[str, Any], sent: set[str], pack: Callable[[Any], Sequence[PicklePart]]
) -> list[str]:
    """Return the names whose values have a part that is sent, the largest first. pack: finds its parts."""
    sizes: dict[str, int] = {}
    for name, value in names.items():
        parts = pack(value)
        found = [part for part, digest in zip(parts, digests(parts), strict=True) if digest in sent]
        sizes[name] = sum(part.size_bytes for part in found)
    return sorted((name for name, size in sizes.items() if size), key=lambda name: -sizes[name])
