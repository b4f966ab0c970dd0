"""What of a rank's work goes back: names, the last value, and what changed of the notebook's own objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO

from ..payload import LeftBehind
from ..pickler import LimitedFile, Reader, TooLarge
from ..refusal import reason_of, type_name
from ..sizes import readable_size
from ..unpickling import SoftModule
from .known import Known
from .sameness import same
from .tracking import Changed, Tracker
from .trees import leading, reached, shown_at
from .writing import Continued

NOTHING = object()
"""The value of a cell whose last statement is no expression."""
VALUE = "value of the last expression"
Change = tuple[int, list[tuple[str, Any]]]
"""An object's number, and of each of its aspects that changed the new state."""


@dataclass(frozen=True)
class Wish:
    """What the cell is to bring back.

    names: those that it assigns, or those of --pull, which also limit what comes of changes (`only`).
    at_home: names that the notebook has already; functions on their way back find them there.
    """

    names: Collection[str]
    value: Any = NOTHING
    only: bool = False
    at_home: Collection[str] = frozenset()
    limit_bytes: int = 1 << 30


@dataclass
class Returning:
    """What goes back, as far as it can be pickled. rebound: names that functions of the notebook set."""

    names: dict[str, Any]
    value: Any
    changes: dict[int, list[tuple[str, Any]]]
    rebound: list[str]
    left: dict[str, LeftBehind] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        value = {} if self.value is NOTHING else {"_": self.value}
        changes = list(self.changes.items())
        return {"names": self.names, "value": value, "changes": changes, "rebound": self.rebound}


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
            held = {name: value for name, value in self._roots().items() if name in self._bound}
            names |= dict.fromkeys(leading(self._tracker.anatomy, held, ids) if ids else ())
        return {name: space[name] for name in names}

    def write(self, file: BinaryIO, wish: Wish) -> tuple[LeftBehind, ...]:
        """Write all that can go back; return what stays, with the reasons."""
        found = self._found
        fresh = [self._known.objects[number] for number in found.fresh]
        changed = self._limited(found, wish)
        going = self._going(found, changed, fresh, wish)
        self._known.drop(found.fresh)
        self._hold_back(going, {n: reason for n, reason in found.broken.items() if n in changed}, wish)
        self._write(file, going, wish)
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

    def _write(self, file: BinaryIO, going: Returning, wish: Wish) -> None:
        begin = file.tell()

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
                self._leave(continued, going, error, wish)

    def _leave(self, continued: Continued, going: Returning, error: Exception, wish: Wish) -> None:
        """Take out what cannot be pickled; all of it when only the whole cannot."""
        before = len(going.left)
        self._leave_names(continued, going, wish)
        self._leave_changes(continued, going, wish)
        if len(going.left) == before:
            self._leave_all(continued, going, error, wish.limit_bytes)

    def _leave_names(self, continued: Continued, going: Returning, wish: Wish) -> None:
        """Take out names that cannot be pickled; of functions also what they would bring along."""
        values = dict(going.names) if going.value is NOTHING else {**going.names, VALUE: going.value}
        for name in (queue := list(values)):
            trial = continued.trial(values[name], wish.limit_bytes)
            if trial.error is not None:
                reason = told("_" if name == VALUE else name, values[name], trial.error, wish.limit_bytes)
                going.left[name] = LeftBehind(name, type_name(values[name]), reason)
                going.names.pop(name, None)
                going.value = NOTHING if name == VALUE else going.value
            for used in trial.used - values.keys() - set(wish.at_home):
                values[used] = self._namespace[used]
                queue.append(used)

    def _leave_changes(self, continued: Continued, going: Returning, wish: Wish) -> None:
        bad: dict[int, str] = {}
        for number in _failing(continued, going.changes, list(going.changes), wish.limit_bytes):
            states = [
                (code, self._thinned(continued, going, number, code, state, wish.limit_bytes))
                for code, state in going.changes[number]
            ]
            going.changes[number] = states
            if error := continued.trial(states, wish.limit_bytes).error:
                bad[number] = told("", self._known.objects[number], error, wish.limit_bytes)
        self._hold_back(going, bad, wish)

    def _thinned(
        self, continued: Continued, going: Returning, number: int, code: str, state: Any, limit_bytes: int
    ) -> Any:
        """Leave away attributes and values of keys that cannot be pickled: the rest is whole without them."""
        aspect, obj = self._tracker.anatomy.by_code[code], self._known.objects[number]
        for path, value in list(aspect.entries(state)):
            error = continued.trial(value, limit_bytes).error
            if error is None or isinstance(error, TooLarge):
                continue
            value = value[1] if code == "entries" else value
            owner = shown_at(obj, self._roots())
            reason = f"{told(owner + path, value, error, limit_bytes)}; the rest of `{owner}` came"
            going.left[owner + path] = LeftBehind(owner + path, type_name(value), reason)
            state = aspect.without(state, path)
        return state

    def _roots(self) -> dict[str, Any]:
        return {name: value for name, value in self._namespace.items() if not name.startswith("__")}

    def _hold_back(self, going: Returning, bad: Mapping[int, str], wish: Wish) -> None:
        """Leave what cannot come, and all of the variables that lead to it: half is worse than none."""
        anatomy, objects = self._tracker.anatomy, self._known.objects
        names = {
            name: value for name, value in self._roots().items() if name in self._bound or name in going.names
        }
        for number, reason in bad.items():
            led = leading(anatomy, names, {id(objects[number])})
            where = shown_at(objects[number], {name: names[name] for name in led} or names)
            root = led[0] if led else where
            reason = f"{reason}; so nothing of `{root}` came"
            going.left[where] = LeftBehind(where, type_name(objects[number]), reason)
            self._drop_trees(going, led, names)
            going.changes.pop(number, None)

    def _drop_trees(self, going: Returning, led: list[str], names: Mapping[str, Any]) -> None:
        objects, anatomy = self._known.objects, self._tracker.anatomy
        todo = list(led)
        dropped: set[str] = set()
        while todo:
            name = todo.pop()
            dropped.add(name)
            going.names.pop(name, None)
            ids = reached(anatomy, [names[name]])
            gone = [number for number in going.changes if id(objects[number]) in ids]
            for number in gone:
                del going.changes[number]
            others = leading(anatomy, names, {id(objects[number]) for number in gone})
            todo += [other for other in others if other not in dropped and other not in todo]
        for name in dropped - set(led):
            reason = f"shares objects with `{led[0]}`, which could not come"
            going.left.setdefault(name, LeftBehind(name, type_name(names[name]), reason))

    def _leave_all(self, continued: Continued, going: Returning, error: Exception, limit_bytes: int) -> None:
        """Blame the largest, when each by itself travels and only together they do not."""
        sizes = {name: continued.trial(value, limit_bytes).size_bytes for name, value in going.names.items()}
        if going.changes and isinstance(error, TooLarge):
            ids = {id(self._known.objects[number]) for number in going.changes}
            roots = leading(self._tracker.anatomy, self._roots(), ids) or ["what changed"]
            reason = f"its changes are too large: {readable_size(limit_bytes)} are allowed for all"
            going.left.update({name: LeftBehind(name, "", reason) for name in roots})
            going.changes.clear()
            return
        for name in sorted(sizes, key=lambda name: -sizes[name])[:1] if sizes else ():
            reason = (
                f"is too large together with the others: {readable_size(limit_bytes)} are allowed for all"
            )
            if not isinstance(error, TooLarge):
                reason = reason_of(name, going.names[name], error)
            going.left[name] = LeftBehind(name, type_name(going.names[name]), reason)
            del going.names[name]
        if not sizes:
            going.left[VALUE] = LeftBehind(VALUE, type_name(going.value), reason_of("_", going.value, error))
            going.value = NOTHING
            going.changes.clear()


def _failing(
    continued: Continued, changes: Mapping[int, Any], numbers: list[int], limit_bytes: int
) -> Iterable[int]:
    """Find those that cannot be written, by halves."""
    error = continued.trial([changes[number] for number in numbers], limit_bytes).error if numbers else None
    if error is None:
        return []
    if len(numbers) == 1:
        return numbers
    middle = len(numbers) // 2
    halves = numbers[:middle], numbers[middle:]
    return [number for half in halves for number in _failing(continued, changes, half, limit_bytes)]


def told(name: str, value: object, error: Exception, limit_bytes: int) -> str:
    """Turn what forbade a value into words."""
    if isinstance(error, TooLarge):
        return f"is too large: {readable_size(limit_bytes)} are allowed for all"
    return reason_of(name, value, error)


def untracked(namespace: dict[str, Any], reader: Reader) -> Return:
    """Return a return that knows nothing of the other side."""
    return Return(Known({}), namespace, reader)
