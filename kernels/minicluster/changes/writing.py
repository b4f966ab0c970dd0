"""A pickle that goes on where another one ended: what both sides have is written as a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minicluster.pickling.pickler import Carry, CountingFile, NotebookPickler, Reader
from minicluster.pickling.rebuilding import arrays_in, is_in_one_piece_there
from minicluster.pickling.tensors import Stored
from minicluster.changes.known import Known, is_storage

_PROTO, _BININT, _BINPERSID, _MEMOIZE, _POP, _NONE_STOP = b"\x80\x05", b"J", b"Q", b"\x94", b"0", b"N."


@dataclass(frozen=True)
class Trial:
    """What forbids to write a value (None: nothing), its size, and the globals that its functions use."""

    error: Exception | None
    size_bytes: int
    used: set[str]


class Continued:
    """Writes pickles whose reader has first read `prelude`."""

    def __init__(self, known: Known, namespace: dict[str, Any], carry: Carry, reader: Reader) -> None:
        self._stored = {n: Stored(obj) for n, obj in known.objects.items() if is_storage(obj)}
        self._numbers = list(known.objects)
        objects = [self._stored.get(number, known.objects[number]) for number in self._numbers]
        self._memo = {id(obj): (place, obj) for place, obj in enumerate(objects)}
        self._links = {id(it): is_in_one_piece_there(it) for it in arrays_in(known.objects.values())}
        self._namespace, self._carry, self._reader = namespace, carry, reader

    def prelude(self) -> bytes:
        """Write opcodes that ask for each known object and keep it in the memo."""
        steps = (
            _BININT + number.to_bytes(4, "little") + _BINPERSID + _MEMOIZE + _POP for number in self._numbers
        )
        return b"".join([_PROTO, *steps, _NONE_STOP])

    def pickler(self, file: Any, carry: Carry | None = None) -> NotebookPickler:
        pickler = NotebookPickler(file, self._namespace, carry or self._carry, self._reader)
        pickler.memo = self._memo
        pickler.links = self._links
        for stored in self._stored.values():
            pickler.tensors.know(stored)
        return pickler

    def trial(self, value: Any, limit_bytes: int) -> Trial:
        """Try to write a value, without the globals that its functions use."""
        sink = CountingFile(limit_bytes)
        pickler = self.pickler(sink, lambda used: False)
        try:
            pickler.dump(value)
        except Exception as error:
            # Any object's own __reduce__ may raise anything.
            return Trial(error, sink.size, pickler.used)
        return Trial(None, sink.size, pickler.used)
