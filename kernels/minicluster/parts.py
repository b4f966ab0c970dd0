"""What is large in a pickle, in parts of their own: what did not change is not sent again with the next cell.

The pickle itself stays as it is, byte for byte: a part is a range of it, and is put back where it was.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .sizes import MOST_PARTS

PART_BYTES = 1 << 20
"""From this size on it is worth a file of its own."""

Data = bytes | memoryview


@dataclass(frozen=True)
class Part:
    """A range of a pickle. at: where it stands in the whole."""

    at: int
    data: memoryview

    @property
    def size_bytes(self) -> int:
        return self.data.nbytes


class PartsFile:
    """Takes a pickle as a file does, and keeps what is large apart, without a copy of it."""

    def __init__(self) -> None:
        self._small: list[bytes] = []
        self._at = 0
        self.parts: list[Part] = []

    def write(self, data: Any) -> int:
        # The large ones come as PickleBuffer, which holds the memory that they are in.
        view = pickle.PickleBuffer(data).raw()
        if view.nbytes >= PART_BYTES and len(self.parts) < MOST_PARTS:
            self.parts.append(Part(self._at, view))
        else:
            self._small.append(view.tobytes())
        self._at += view.nbytes
        return view.nbytes

    @property
    def small(self) -> bytes:
        """All but the parts."""
        return b"".join(self._small)


def whole(small: bytes, parts: Iterable[tuple[int, Data]]) -> bytes:
    """Put parts back between what is small. parts: where each stands, and its bytes; in their order."""
    pieces: list[Data] = []
    taken = at = 0
    for begin, data in parts:
        pieces += [small[taken : taken + begin - at], data]
        taken += begin - at
        at = begin + len(data)
    return b"".join([*pieces, small[taken:]])


def digests(parts: Sequence[Part]) -> list[str]:
    """Return the parts' SHA-256: large ones are hashed beside each other, outside of Python's lock."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda part: hashlib.sha256(part.data).hexdigest(), parts))


def holders(names: Mapping[str, Any], sent: set[str], pack: Callable[[Any], Sequence[Part]]) -> list[str]:
    """Return the names whose values have a part that is sent, the largest first. pack: finds its parts."""
    sizes: dict[str, int] = {}
    for name, value in names.items():
        parts = pack(value)
        found = [part for part, digest in zip(parts, digests(parts), strict=True) if digest in sent]
        sizes[name] = sum(part.size_bytes for part in found)
    return sorted((name for name, size in sizes.items() if size), key=lambda name: -sizes[name])
