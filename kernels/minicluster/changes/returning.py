"""What a rank returns: names, the last expression's value, and the changes in the notebook's own objects.

What cannot be returned is left out: single names and attributes, or a whole variable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO

from minicluster.capture.payload import LeftBehind
from minicluster.changes.continued_pickle import Continued
from minicluster.changes.equality import same
from minicluster.changes.reachability import leading, listed, reached, shown_at
from minicluster.changes.shared_objects import SharedObjects
from minicluster.changes.tracking import Changed, Tracker
from minicluster.pickling.pickler import LimitedFile, TargetLimits, TooLarge
from minicluster.pickling.refusal import reason_of, type_name
from minicluster.pickling.sizes import readable_size
from minicluster.pickling.unpickling import SoftModule

NOTHING = object()
"""The value of a cell whose last statement is no expression."""
VALUE = "value of the last expression"
_SHOWN = 8


@dataclass(frozen=True)
class ReturnRequest:
    """What the cell is to return.

    names: those that it assigns, or those of --pull.
    only: whether changes are returned only for objects that these names lead to.
    at_home: names that the notebook has; they are not sent with functions that read them.
    """

    names: Collection[str]
    value: Any = NOTHING
    only: bool = False
    at_home: Collection[str] = frozenset()
    limit_bytes: int = 1 << 30


@dataclass
class ReturnBody:
    """What is returned, as far as it can be pickled.

    changes: by an object's number, the code and the delta of each aspect that changed.
    rebound: names that functions of the notebook set, or whose object is returned as a new one.
    anew: objects that are returned as new ones because they cannot be changed in place: location -> type.
    """

    names: dict[str, Any]
    value: Any
    changes: dict[int, list[tuple[str, Any]]]
    rebound: list[str]
    left: dict[str, LeftBehind] = field(default_factory=dict)
    anew: dict[str, str] = field(default_factory=dict)

    def pickled(self) -> dict[str, Any]:
        value = {} if self.value is NOTHING else {"_": self.value}
        changes = list(self.changes.items())
        about = {"rebound": self.rebound, "anew": self.anew}
        return {"names": self.names, "value": value, "changes": changes, **about}

    def leave(self, name: str, value: object, reason: str) -> None:
        self.left[name] = LeftBehind(name, type_name(value), reason)


class ResultWriter:
    """Decides what is returned. It is made when the names were loaded, and used when the cell ends."""

    def __init__(self, shared: SharedObjects, namespace: dict[str, Any], target: TargetLimits) -> None:
        self._shared = shared
        self._namespace = namespace
        self._target = target
        self._bound = dict(namespace)
        self._tracker = Tracker(shared)

    @property
    def has_shared_objects(self) -> bool:
        """Whether the result refers to objects that the notebook sent."""
        return bool(self._shared.objects)

    @cached_property
    def _found(self) -> Changed:
        found = self._tracker.changed()
        self._tracker.spread_fresh(found)
        return found

    def coming(self, request: ReturnRequest) -> dict[str, Any]:
        """Return by name what is to be returned: names requested, bound again, or changed in place."""
        space, objects, found = self._namespace, self._shared.objects, self._found
        fresh = {id(objects[number]) for number in found.fresh}
        names = dict.fromkeys(name for name in request.names if name in space)
        if not request.only:
            names |= dict.fromkeys(name for name in self._bound if self._is_rebound(name, fresh))
            ids = {id(objects[number]) for number in (*found.now, *found.broken)}
            held = {name: space[name] for name in self._bound if name in space and not name.startswith("__")}
            names |= dict.fromkeys(leading(self._tracker.anatomy, held, ids) if ids else ())
        return {name: space[name] for name in names}

    def write(self, file: BinaryIO, request: ReturnRequest) -> tuple[LeftBehind, ...]:
        """Write all that can be returned; return what is left behind, with the reasons."""
        found = self._found
        fresh = [self._shared.objects[number] for number in found.fresh]
        changed = self._limited(found, request)
        body = self._body(found, changed, fresh, request)
        self._shared.drop(found.fresh)
        exclusion = Exclusion(self._tracker, self._namespace, self._bound.keys(), body, request)
        # A tuple is new only because something in it is new, so it is not named.
        new = [obj for obj in fresh if not isinstance(obj, tuple | frozenset)]
        body.anew = {shown_at(obj, exclusion.roots()): type_name(obj) for obj in new[:_SHOWN]}
        exclusion.hold_back({n: reason for n, reason in found.broken.items() if n in changed})
        self._write(file, exclusion, request)
        return tuple(body.left.values())

    def _limited(self, found: Changed, request: ReturnRequest) -> set[int]:
        """Return the numbers of changed objects, with --pull only of those that its names lead to."""
        changed = {*found.now, *found.broken} - found.fresh
        if not request.only or not changed:
            return changed
        roots = [self._namespace[name] for name in request.names if name in self._namespace]
        ids = reached(self._tracker.anatomy, roots)
        return {number for number in changed if id(self._shared.objects[number]) in ids}

    def _body(
        self, found: Changed, changed: set[int], fresh: list[Any], request: ReturnRequest
    ) -> ReturnBody:
        ids = set(map(id, fresh))
        space, bound = self._namespace, self._bound
        rebound = [] if request.only else [name for name in bound if self._is_rebound(name, ids)]
        names = {name: SoftModule.of(space[name]) for name in (*request.names, *rebound) if name in space}
        changes = {n: self._deltas(n, found, ids) for n in sorted(changed) if n in found.now}
        return ReturnBody(
            names, request.value, changes, [name for name in rebound if name not in request.names]
        )

    def _is_rebound(self, name: str, fresh: set[int]) -> bool:
        if name not in self._namespace or name.startswith("__"):
            return False
        value = self._namespace[name]
        return not same(self._bound[name], value) or id(value) in fresh

    def _deltas(self, number: int, found: Changed, fresh: set[int]) -> list[tuple[str, Any]]:
        anatomy, obj = self._tracker.anatomy, self._shared.objects[number]
        before, now = self._tracker.before[number], found.now[number]

        def moved(part: object) -> bool:
            return anatomy.is_loose(part) or id(part) in fresh

        return [
            (aspect.code, aspect.delta(obj, was, at, moved))
            for aspect, was, at in zip(anatomy.aspects(obj), before[2], now[2], strict=True)
            if now is before or not was.is_same(at)
        ]

    def _write(self, file: BinaryIO, exclusion: Exclusion, request: ReturnRequest) -> None:
        begin, body = file.tell(), exclusion.body

        def carry(name: str) -> bool:
            return name not in request.at_home and name not in body.left

        continued = Continued(self._shared, self._namespace, carry, self._target)
        while True:
            try:
                file.write(continued.prelude())
                continued.pickler(LimitedFile(request.limit_bytes, file)).dump(body.pickled())
                return
            except Exception as error:
                file.seek(begin)
                file.truncate()
                exclusion.take_out(continued, error)


@dataclass
class Exclusion:
    """Takes out of a body what cannot be returned. bound: names that were sent with the cell."""

    tracker: Tracker
    namespace: Mapping[str, Any]
    bound: Set[str]
    body: ReturnBody
    request: ReturnRequest

    def take_out(self, continued: Continued, error: Exception) -> None:
        """Take out what cannot be pickled; if each part alone can be pickled, take out the largest."""
        before = len(self.body.left)
        self._take_out_names(continued)
        self._take_out_changes(continued)
        if len(self.body.left) == before:
            self._take_out_largest(continued, error)

    def _take_out_names(self, continued: Continued) -> None:
        """Take out names that cannot be pickled, and globals of functions that cannot be pickled."""
        body, values = self.body, dict(self.body.names)
        if body.value is not NOTHING:
            values[VALUE] = body.value
        for name in (queue := list(values)):
            trial = continued.trial(values[name], self.request.limit_bytes)
            if trial.error is not None:
                shown = "_" if name == VALUE else name
                body.leave(name, values[name], self._reason(shown, values[name], trial.error))
                body.names.pop(name, None)
                body.value = NOTHING if name == VALUE else body.value
            for used in trial.used - values.keys() - set(self.request.at_home):
                values[used] = self.namespace[used]
                queue.append(used)

    def _take_out_changes(self, continued: Continued) -> None:
        bad: dict[int, str] = {}
        changes = self.body.changes
        for number in self._failing(continued, list(changes)):
            deltas = [(code, self._thinned(continued, number, code, it)) for code, it in changes[number]]
            changes[number] = deltas
            if error := continued.trial(deltas, self.request.limit_bytes).error:
                bad[number] = self._reason("", self.tracker.shared.objects[number], error)
        self.hold_back(bad)

    def _failing(self, continued: Continued, numbers: list[int]) -> list[int]:
        """Return the objects whose changes cannot be pickled, found by bisection."""
        changes = [self.body.changes[number] for number in numbers]
        if not numbers or continued.trial(changes, self.request.limit_bytes).error is None:
            return []
        if len(numbers) == 1:
            return numbers
        middle = len(numbers) // 2
        return [*self._failing(continued, numbers[:middle]), *self._failing(continued, numbers[middle:])]

    def _thinned(self, continued: Continued, number: int, code: str, delta: Any) -> Any:
        """Leave out attributes and dict entries that cannot be pickled; the rest is valid without them."""
        aspect, obj = self.tracker.anatomy.by_code[code], self.tracker.shared.objects[number]
        for path, value in list(aspect.entries(delta)):
            error = continued.trial(value, self.request.limit_bytes).error
            if error is None or isinstance(error, TooLarge):
                continue
            value = value[1] if code == "entries" else value
            owner = shown_at(obj, self.roots())
            reason = f"{self._reason(owner + path, value, error)}; the rest of `{owner}` came"
            self.body.leave(owner + path, value, reason)
            delta = aspect.without(delta, path)
        return delta

    def roots(self) -> dict[str, Any]:
        return {name: value for name, value in self.namespace.items() if not name.startswith("__")}

    def hold_back(self, bad: Mapping[int, str]) -> None:
        """Leave out these objects, and the variables that lead to them: half a change is worse than none."""
        anatomy, objects = self.tracker.anatomy, self.tracker.shared.objects
        going = self.bound | self.body.names.keys()
        names = {name: value for name, value in self.roots().items() if name in going}
        for number, reason in bad.items():
            led = leading(anatomy, names, {id(objects[number])})
            where = shown_at(objects[number], {name: names[name] for name in led} or names)
            self.body.leave(where, objects[number], f"{reason}; so nothing of {listed(led or [where])} came")
            self._drop_trees(led, names)
            self.body.changes.pop(number, None)

    def _drop_trees(self, led: list[str], names: Mapping[str, Any]) -> None:
        objects, anatomy = self.tracker.shared.objects, self.tracker.anatomy
        todo = list(led)
        dropped: set[str] = set()
        while todo:
            name = todo.pop()
            dropped.add(name)
            self.body.names.pop(name, None)
            ids = reached(anatomy, [names[name]])
            gone = [number for number in self.body.changes if id(objects[number]) in ids]
            for number in gone:
                del self.body.changes[number]
            others = leading(anatomy, names, {id(objects[number]) for number in gone})
            todo += [other for other in others if other not in dropped and other not in todo]
        for name in dropped - set(led) - self.body.left.keys():
            self.body.leave(name, names[name], f"shares objects with `{led[0]}`, which could not come")

    def _take_out_largest(self, continued: Continued, error: Exception) -> None:
        """Take out the largest: each can be pickled alone, but not all together."""
        body, limit = self.body, readable_size(self.request.limit_bytes)
        if body.changes and isinstance(error, TooLarge):
            ids = {id(self.tracker.shared.objects[number]) for number in body.changes}
            roots = leading(self.tracker.anatomy, self.roots(), ids) or ["what changed"]
            reason = f"its changes are too large: {limit} are allowed for all"
            body.left.update({name: LeftBehind(name, "", reason) for name in roots})
            body.changes.clear()
        elif body.names:
            values = body.names.items()
            sizes = {name: continued.trial(it, self.request.limit_bytes).size_bytes for name, it in values}
            name = max(sizes, key=lambda name: sizes[name])
            value = body.names.pop(name)
            too_large = f"is too large together with the others: {limit} are allowed for all"
            body.leave(
                name, value, too_large if isinstance(error, TooLarge) else reason_of(name, value, error)
            )
        else:
            body.leave(VALUE, body.value, reason_of("_", body.value, error))
            body.value = NOTHING
            body.changes.clear()

    def _reason(self, name: str, value: object, error: Exception) -> str:
        """Return in words why a value cannot be returned."""
        if isinstance(error, TooLarge):
            return f"is too large: {readable_size(self.request.limit_bytes)} are allowed for all"
        return reason_of(name, value, error)
