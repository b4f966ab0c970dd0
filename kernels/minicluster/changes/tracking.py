"""What has changed: on a rank since its names were loaded, in a notebook since they were sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from minicluster.changes.aspects import Look
from minicluster.changes.inspection import Anatomy, Looks
from minicluster.changes.known import Known
from minicluster.changes.likeness import likeness
from minicluster.pickling.collector import no_collection

_MADE_ANEW = frozenset({"reduced", "encoded"})
"""Codes of aspects that ask an object for its state, which may be another one each time."""


@dataclass
class Changed:
    """now: how those stand that changed, by number. broken: those that cannot be looked at any more, and why.

    fresh: objects whose new state fits no object that is there already; they go as new ones.
    """

    now: dict[int, Looks] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)


class Tracker:
    """Remembers how known objects stood."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.anatomy = Anatomy(known.number, known.storage)
        self._like: dict[int, str] = {}
        with no_collection():
            self.before = dict(self._look_at_all())

    def _look_at_all(self) -> Iterator[tuple[int, Looks]]:
        for number, obj in self.known.objects.items():
            try:
                looks = self.anatomy.look(obj)
                if looks and (self._is_steady(looks, obj) or self._is_alike(number, obj)):
                    yield number, looks
            except Exception:  # noqa: S112 - any object's own methods may raise; then nobody can tell
                continue

    def _is_steady(self, looks: Looks, obj: object) -> bool:
        """Tell whether an object looks the same as long as it is the same."""
        return _MADE_ANEW.isdisjoint(looks[1]) or _is_same(looks, self.anatomy.look(obj))

    def _is_alike(self, number: int, obj: object) -> bool:
        """Keep the digest of one whose state is made anew each time, as far as it has one."""
        like = likeness(obj)
        if like is None or like != likeness(obj):
            return False
        self._like[number] = like
        return True

    def changed(self, numbers: Iterable[int] | None = None, settled: bool = True) -> Changed:
        """Look at these objects again (None: at all). settled: first forget storages that were replaced."""
        found = Changed()
        if settled:
            settle(self.known, self.before)
        with no_collection():
            for number in list(self.before) if numbers is None else numbers:
                if number in self.before and number in self.known.objects:  # settle() drops what was resized.
                    self._look_again(number, found)
        return found

    def _look_again(self, number: int, found: Changed) -> None:
        before = self.before[number]
        try:
            now = self.anatomy.look(self.known.objects[number])
        except Exception as error:
            # Objects may forbid it: a parametrized module raises.
            found.broken[number] = str(error).partition("\n")[0][:200] or type(error).__name__
            return
        if now is None or _is_same(before, now) or self._is_still_alike(number):
            return
        # A GradScaler's state lists its attributes until it is used.
        encoded_now = before[0] is now[0] and now[1] == ("encoded",)
        if before[:2] != now[:2] and not encoded_now:
            found.broken[number] = (
                f"is a {now[0].__name__} now, which a {before[0].__name__} cannot become here"
            )
            return
        found.now[number] = now
        aspects = self.anatomy.aspects(self.known.objects[number])
        pairs = zip(aspects, before[2], now[2], strict=True)
        if not all(aspect.fits(was, at) for aspect, was, at in pairs if not was.is_same(at)):
            found.fresh.add(number)

    def _is_still_alike(self, number: int) -> bool:
        like = self._like.get(number)
        return like is not None and like == likeness(self.known.objects[number])

    def look_of(self, number: int, found: Changed) -> Looks | None:
        return found.now.get(number) or self.before.get(number)

    def spread_fresh(self, found: Changed) -> None:
        """Let those that hold a fresh object take the new one; what can hold no other is fresh, too."""
        todo = bool(found.fresh)
        while todo:
            ids = {id(self.known.objects[number]) for number in found.fresh}
            todo = False
            for number, obj in self.known.objects.items():
                if number in found.fresh:
                    continue
                if isinstance(obj, tuple | frozenset) and not ids.isdisjoint(map(id, obj)):
                    found.fresh.add(number)
                    todo = True
                elif (looks := self.before.get(number)) and number not in found.now and _holds(looks, ids):
                    found.now[number] = looks


def _holds(looks: Looks, ids: set[int]) -> bool:
    facts = (it for look in looks[2] if isinstance(look.facts, frozenset) for it in look.facts)
    return any(not ids.isdisjoint(map(id, look.parts)) for look in looks[2]) or not ids.isdisjoint(
        map(id, facts)
    )


def _is_same(one: Looks, other: Looks | None) -> bool:
    if other is None or one[0] is not other[0] or one[1] != other[1]:
        return False
    return all(map(Look.is_same, one[2], other[2]))


# Storages that were replaced while their tensors stayed: by `.to("cuda")`, `.data = ...`, a resize.


def settle(known: Known, before: dict[int, Looks]) -> None:
    """Take a storage that came in the place of a known one for that, and drop what has another size now."""
    now: dict[int, dict[int, Any]] = defaultdict(dict)
    for number, looks in before.items():
        if "geometry" in looks[1] and looks[2][0].facts[0][0] == "known":
            (_, old), place = looks[2][0].facts
            storage, fits = _storage_now(known.objects[number], place)
            now[old][storage._cdata if fits else -number] = storage
    for number, found in now.items():
        cdata = next(iter(found))
        if len(found) == 1 and cdata > 0 and _moved(known, number, found[cdata]):
            _take(known, number, found[cdata], before)
    sized = ((n, looks[2][0].facts[0]) for n, looks in before.items() if looks[1] == ("memory",))
    known.drop([n for n, size in sized if n in known.objects and known.objects[n].nbytes() != size])


def _storage_now(tensor: Any, place: Any) -> tuple[Any, bool]:
    """Return a tensor's storage, and whether the tensor is the same part of it as before."""
    storage = tensor.untyped_storage()
    dtype, shape, strides, offset, _ = place
    now = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return storage, now == (dtype, shape, strides, offset)


def _moved(known: Known, number: int, storage: Any) -> bool:
    """Tell whether it is a new storage elsewhere. One of the same device is another one in the notebook, too:
    a view of the old one there must not change with it.
    """
    return known.storage(storage) is None and storage.device != known.objects[number].device


def _take(known: Known, number: int, storage: Any, before: dict[int, Looks]) -> None:
    looks = before.get(number)
    if looks and storage.nbytes() == looks[2][0].facts[0]:
        known.adopt(storage, number)
