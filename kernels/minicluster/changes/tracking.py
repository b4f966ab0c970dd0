"""Detects changes: on a rank since its names were loaded, in a notebook since they were sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from minicluster.changes.aspects import Reading
from minicluster.changes.inspection import Anatomy, Readings
from minicluster.changes.shared_objects import SharedObjects
from minicluster.changes.value_digest import value_digest
from minicluster.pickling.refusal import reason_against
from minicluster.pickling.unpickling import no_collection

_MADE_ANEW = frozenset({"reduced", "encoded"})
"""Codes of aspects that ask an object for its state; some objects return a new state each time."""


@dataclass
class Changed:
    """Which objects changed.

    now: the new readings of changed objects, by number. broken: objects that can no longer be read, and why.
    fresh: objects that cannot be changed in place into their new state; they are returned as new objects.
    """

    now: dict[int, Readings] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)


class Tracker:
    """Remembers the state of the objects that both sides have."""

    def __init__(self, shared: SharedObjects) -> None:
        self.shared = shared
        self.anatomy = Anatomy(shared.number, shared.storage)
        self._like: dict[int, str] = {}
        with no_collection():
            self.before = dict(self._read_all())

    def _read_all(self) -> Iterator[tuple[int, Readings]]:
        for number, obj in self.shared.objects.items():
            try:
                readings = self.anatomy.read(obj)
                if readings and (self._is_steady(readings, obj) or self._is_alike(number, obj)):
                    yield number, readings
            except Exception:  # noqa: S112 - any object's own methods may raise; then nobody can tell
                continue

    def _is_steady(self, readings: Readings, obj: object) -> bool:
        """Whether two readings of an unchanged object are equal."""
        return _MADE_ANEW.isdisjoint(readings[1]) or _is_same(readings, self.anatomy.read(obj))

    def _is_alike(self, number: int, obj: object) -> bool:
        """Store the digest of an object that returns a new state each time, if the digest is stable."""
        like = value_digest(obj)
        if like is None or like != value_digest(obj):
            return False
        self._like[number] = like
        return True

    def changed(self, numbers: Iterable[int] | None = None, settled: bool = True) -> Changed:
        """Read these objects again (None: all). settled: whether to call `settle` first."""
        found = Changed()
        if settled:
            settle(self.shared, self.before)
        with no_collection():
            for number in list(self.before) if numbers is None else numbers:
                # settle() drops what was resized.
                if number in self.before and number in self.shared.objects:
                    self._read_again(number, found)
        return found

    def _read_again(self, number: int, found: Changed) -> None:
        before, obj = self.before[number], self.shared.objects[number]
        try:
            now = self.anatomy.read(obj)
        except Exception as error:
            # Some objects forbid reading: a parametrized module raises.
            found.broken[number] = str(error).partition("\n")[0][:200] or type(error).__name__
            return
        if now is None or _is_same(before, now):
            return
        if number in self._like and self._like[number] == value_digest(obj):
            return
        # A GradScaler's state is its attributes until it is first used.
        encoded_now = before[0] is now[0] and now[1] == ("encoded",)
        if before[:2] != now[:2] and not encoded_now:
            found.broken[number] = reason_against(now[0]) or (
                f"is a {now[0].__name__} now, which a {before[0].__name__} cannot become here"
            )
            return
        found.now[number] = now
        pairs = zip(self.anatomy.aspects(obj), before[2], now[2], strict=True)
        if not all(aspect.fits(was, at) for aspect, was, at in pairs if not was.is_same(at)):
            found.fresh.add(number)

    def spread_fresh(self, found: Changed) -> None:
        """Mark objects that hold a fresh object as changed; tuples cannot be changed, so they are fresh."""
        todo = bool(found.fresh)
        while todo:
            ids = {id(self.shared.objects[number]) for number in found.fresh}
            todo = False
            for number, obj in self.shared.objects.items():
                if number in found.fresh:
                    continue
                if isinstance(obj, tuple | frozenset) and not ids.isdisjoint(map(id, obj)):
                    found.fresh.add(number)
                    todo = True
                elif (before := self.before.get(number)) and number not in found.now and _holds(before, ids):
                    found.now[number] = before


def _holds(readings: Readings, ids: set[int]) -> bool:
    return any(
        not ids.isdisjoint(map(id, reading.parts))
        or (isinstance(reading.facts, frozenset) and not ids.isdisjoint(map(id, reading.facts)))
        for reading in readings[2]
    )


def _is_same(one: Readings, other: Readings | None) -> bool:
    if other is None or one[0] is not other[0] or one[1] != other[1]:
        return False
    return all(map(Reading.is_same, one[2], other[2]))


# Storages that were replaced while their tensors are the same: by `.to("cuda")`, `.data = ...`, a resize.


def settle(shared: SharedObjects, before: dict[int, Readings]) -> None:
    """Treat a storage on another device as its predecessor, and drop storages whose size changed."""
    now: dict[int, dict[int, Any]] = defaultdict(dict)
    for number, readings in before.items():
        if "geometry" in readings[1] and readings[2][0].facts[0][0] == "known":
            (_, old), place = readings[2][0].facts
            tensor = shared.objects[number]
            storage = tensor.untyped_storage()
            fits = place[:4] == (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
            now[old][storage._cdata if fits else -number] = storage
    for number, found in now.items():
        cdata, storage = next(iter(found.items()))
        if len(found) == 1 and cdata > 0 and _is_moved(shared, number, storage):
            readings = before.get(number)
            if readings and storage.nbytes() == readings[2][0].facts[0]:
                shared.adopt(storage, number)
    sized = ((n, readings[2][0].facts[0]) for n, readings in before.items() if readings[1] == ("memory",))
    shared.drop([n for n, size in sized if n in shared.objects and shared.objects[n].nbytes() != size])


def _is_moved(shared: SharedObjects, number: int, storage: Any) -> bool:
    """Whether a storage is new, and on another device than its predecessor.

    A new storage on the same device is a new one in the notebook, too: views of the old one must not change.
    """
    return shared.storage(storage) is None and storage.device != shared.objects[number].device
