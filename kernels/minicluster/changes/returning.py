"""What of a rank's work goes back: names, the last value, and what changed of the notebook's own objects."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, BinaryIO

from minicluster.capture.payload import LeftBehind
from minicluster.changes.continued_pickle import Continued
from minicluster.changes.exclusion import NOTHING, VALUE, Leaving, Returning, Wish
from minicluster.changes.known import Known
from minicluster.changes.sameness import same
from minicluster.changes.tracking import Changed, Tracker
from minicluster.changes.trees import leading, reached, shown_at
from minicluster.pickling.pickler import LimitedFile, Reader
from minicluster.pickling.refusal import type_name
from minicluster.pickling.unpickling import SoftModule

__all__ = ["NOTHING", "VALUE", "Return", "Wish", "untracked"]
_SHOWN = 8


class Return:
    """Decides what goes back, from the moment when the names were loaded to the cell's end."""

    def __init__(self, known: Known, namespace: dict[str, Any], reader: Reader) -> None:
        self._known = known
        self._namespace = namespace
        self._reader = reader
        self._bound = dict(namespace)
        self._tracker = Tracker(known)

    @property
    def refers(self) -> bool:
        """Tell whether what was written speaks of objects that the notebook sent."""
        return bool(self._known.objects)

    @cached_property
    def _found(self) -> Changed:
        found = self._tracker.changed()
        self._tracker.spread_fresh(found)
        return found

    def coming(self, wish: Wish) -> dict[str, Any]:
        """Return by name what is to come back: what is wished for, bound anew, or changed in place."""
        space, objects, found = self._namespace, self._known.objects, self._found
        fresh = {id(objects[number]) for number in found.fresh}
        names = dict.fromkeys(name for name in wish.names if name in space)
        if not wish.only:
            names |= dict.fromkeys(name for name in self._bound if self._is_rebound(name, fresh))
            ids = {id(objects[number]) for number in (*found.now, *found.broken)}
            held = {name: space[name] for name in self._bound if name in space and not name.startswith("__")}
            names |= dict.fromkeys(leading(self._tracker.anatomy, held, ids) if ids else ())
        return {name: space[name] for name in names}

    def write(self, file: BinaryIO, wish: Wish) -> tuple[LeftBehind, ...]:
        """Write all that can go back; return what stays, with the reasons."""
        found = self._found
        fresh = [self._known.objects[number] for number in found.fresh]
        changed = self._limited(found, wish)
        going = self._going(found, changed, fresh, wish)
        self._known.drop(found.fresh)
        leaving = Leaving(self._tracker, self._namespace, self._bound.keys(), going, wish)
        going.anew = self._anew(fresh, leaving.roots())
        leaving.hold_back({n: reason for n, reason in found.broken.items() if n in changed})
        self._write(file, leaving)
        return tuple(going.left.values())

    def _limited(self, found: Changed, wish: Wish) -> set[int]:
        """Return what changed, of what the names of --pull lead to."""
        changed = {*found.now, *found.broken} - found.fresh
        if not wish.only or not changed:
            return changed
        roots = [self._namespace[name] for name in wish.names if name in self._namespace]
        ids = reached(self._tracker.anatomy, roots)
        return {number for number in changed if id(self._known.objects[number]) in ids}

    def _going(self, found: Changed, changed: set[int], fresh: list[Any], wish: Wish) -> Returning:
        ids = set(map(id, fresh))
        space, bound = self._namespace, self._bound
        rebound = [] if wish.only else [name for name in bound if self._is_rebound(name, ids)]
        names = {name: SoftModule.of(space[name]) for name in (*wish.names, *rebound) if name in space}
        changes = {n: self._states(n, found, ids) for n in sorted(changed) if n in found.now}
        rebound = [name for name in rebound if name not in wish.names]
        return Returning(names, wish.value, changes, rebound)

    def _anew(self, fresh: list[Any], roots: Mapping[str, Any]) -> dict[str, str]:
        """Say where objects are that go as new ones, but for tuples: those only follow what they hold."""
        new = [obj for obj in fresh if not isinstance(obj, tuple | frozenset)]
        return {shown_at(obj, roots): type_name(obj) for obj in new[:_SHOWN]}

    def _is_rebound(self, name: str, fresh: set[int]) -> bool:
        if name not in self._namespace or name.startswith("__"):
            return False
        value = self._namespace[name]
        return not same(self._bound[name], value) or id(value) in fresh

    def _states(self, number: int, found: Changed, fresh: set[int]) -> list[tuple[str, Any]]:
        anatomy, obj = self._tracker.anatomy, self._known.objects[number]
        spread = found.now[number] is self._tracker.before[number]
        aspects = zip(
            anatomy.aspects(obj), self._tracker.before[number][2], found.now[number][2], strict=True
        )

        def moved(part: object) -> bool:
            return anatomy.is_loose(part) or id(part) in fresh

        return [
            (aspect.code, aspect.state(obj, before, now, moved))
            for aspect, before, now in aspects
            if spread or not before.is_same(now)
        ]

    def _write(self, file: BinaryIO, leaving: Leaving) -> None:
        begin, going, wish = file.tell(), leaving.going, leaving.wish

        def carry(name: str) -> bool:
            return name not in wish.at_home and name not in going.left

        continued = Continued(self._known, self._namespace, carry, self._reader)
        while True:
            try:
                file.write(continued.prelude())
                continued.pickler(LimitedFile(wish.limit_bytes, file)).dump(going.body())
                return
            except Exception as error:
                file.seek(begin)
                file.truncate()
                leaving.leave(continued, error)


def untracked(namespace: dict[str, Any], reader: Reader) -> Return:
    """Return a return that knows nothing of the other side."""
    return Return(Known({}), namespace, reader)
