"""Taking out what cannot go back: single names and attributes, or a variable with all that it holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from minicluster.capture.payload import LeftBehind
from minicluster.changes.continued_pickle import Continued
from minicluster.changes.tracking import Tracker
from minicluster.changes.trees import leading, listed, reached, shown_at
from minicluster.pickling.pickler import TooLarge
from minicluster.pickling.refusal import reason_of, type_name
from minicluster.pickling.sizes import readable_size

NOTHING = object()
"""The value of a cell whose last statement is no expression."""
VALUE = "value of the last expression"
Change = tuple[int, list[tuple[str, Any]]]
"""An object's number, and of each of its aspects that changed the new state."""


@dataclass
class Leaving:
    """Takes out what cannot go. bound: names that the cell was sent with."""

    tracker: Tracker
    namespace: Mapping[str, Any]
    bound: Set[str]
    going: Returning
    wish: Wish

    def leave(self, continued: Continued, error: Exception) -> None:
        """Take out what cannot be pickled; all of it when only the whole cannot."""
        before = len(self.going.left)
        self._leave_names(continued)
        self._leave_changes(continued)
        if len(self.going.left) == before:
            self._leave_all(continued, error)

    def _leave_names(self, continued: Continued) -> None:
        """Take out names that cannot be pickled; of functions also what they would bring along."""
        values = dict(self.going.names)
        if self.going.value is not NOTHING:
            values[VALUE] = self.going.value
        for name in (queue := list(values)):
            trial = continued.trial(values[name], self.wish.limit_bytes)
            if trial.error is not None:
                shown = "_" if name == VALUE else name
                reason = told(shown, values[name], trial.error, self.wish.limit_bytes)
                self.going.left[name] = LeftBehind(name, type_name(values[name]), reason)
                self.going.names.pop(name, None)
                self.going.value = NOTHING if name == VALUE else self.going.value
            for used in trial.used - values.keys() - set(self.wish.at_home):
                values[used] = self.namespace[used]
                queue.append(used)

    def _leave_changes(self, continued: Continued) -> None:
        bad: dict[int, str] = {}
        changes = self.going.changes
        for number in _failing(continued, changes, list(changes), self.wish.limit_bytes):
            states = [(code, self._thinned(continued, number, code, it)) for code, it in changes[number]]
            changes[number] = states
            if error := continued.trial(states, self.wish.limit_bytes).error:
                bad[number] = told("", self.tracker.known.objects[number], error, self.wish.limit_bytes)
        self.hold_back(bad)

    def _thinned(self, continued: Continued, number: int, code: str, state: Any) -> Any:
        """Leave away attributes and values of keys that cannot be pickled: the rest is whole without them."""
        aspect, obj = self.tracker.anatomy.by_code[code], self.tracker.known.objects[number]
        for path, value in list(aspect.entries(state)):
            error = continued.trial(value, self.wish.limit_bytes).error
            if error is None or isinstance(error, TooLarge):
                continue
            value = value[1] if code == "entries" else value
            owner = shown_at(obj, self.roots())
            reason = f"{told(owner + path, value, error, self.wish.limit_bytes)}; the rest of `{owner}` came"
            self.going.left[owner + path] = LeftBehind(owner + path, type_name(value), reason)
            state = aspect.without(state, path)
        return state

    def roots(self) -> dict[str, Any]:
        return {name: value for name, value in self.namespace.items() if not name.startswith("__")}

    def hold_back(self, bad: Mapping[int, str]) -> None:
        """Leave what cannot come, and all of the variables that lead to it: half is worse than none."""
        anatomy, objects = self.tracker.anatomy, self.tracker.known.objects
        going = self.bound | self.going.names.keys()
        names = {name: value for name, value in self.roots().items() if name in going}
        for number, reason in bad.items():
            led = leading(anatomy, names, {id(objects[number])})
            where = shown_at(objects[number], {name: names[name] for name in led} or names)
            reason = f"{reason}; so nothing of {listed(led or [where])} came"
            self.going.left[where] = LeftBehind(where, type_name(objects[number]), reason)
            self._drop_trees(led, names)
            self.going.changes.pop(number, None)

    def _drop_trees(self, led: list[str], names: Mapping[str, Any]) -> None:
        objects, anatomy = self.tracker.known.objects, self.tracker.anatomy
        todo = list(led)
        dropped: set[str] = set()
        while todo:
            name = todo.pop()
            dropped.add(name)
            self.going.names.pop(name, None)
            ids = reached(anatomy, [names[name]])
            gone = [number for number in self.going.changes if id(objects[number]) in ids]
            for number in gone:
                del self.going.changes[number]
            others = leading(anatomy, names, {id(objects[number]) for number in gone})
            todo += [other for other in others if other not in dropped and other not in todo]
        for name in dropped - set(led):
            reason = f"shares objects with `{led[0]}`, which could not come"
            self.going.left.setdefault(name, LeftBehind(name, type_name(names[name]), reason))

    def _leave_all(self, continued: Continued, error: Exception) -> None:
        """Blame the largest, when each by itself travels and only together they do not."""
        going, limit = self.going, readable_size(self.wish.limit_bytes)
        if going.changes and isinstance(error, TooLarge):
            ids = {id(self.tracker.known.objects[number]) for number in going.changes}
            roots = leading(self.tracker.anatomy, self.roots(), ids) or ["what changed"]
            reason = f"its changes are too large: {limit} are allowed for all"
            going.left.update({name: LeftBehind(name, "", reason) for name in roots})
            going.changes.clear()
        elif going.names:
            values = going.names.items()
            sizes = {name: continued.trial(it, self.wish.limit_bytes).size_bytes for name, it in values}
            name = max(sizes, key=lambda name: sizes[name])
            value = going.names.pop(name)
            reason = reason_of(name, value, error)
            if isinstance(error, TooLarge):
                reason = f"is too large together with the others: {limit} are allowed for all"
            going.left[name] = LeftBehind(name, type_name(value), reason)
        else:
            reason = reason_of("_", going.value, error)
            going.left[VALUE] = LeftBehind(VALUE, type_name(going.value), reason)
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


# What is wished for of a rank's work, and what of it goes back.


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
    """What goes back, as far as it can be pickled.

    rebound: names that functions of the notebook set, or whose object goes as a new one.
    anew: objects that go as new ones, since none can be changed into them: where they are, their types.
    """

    names: dict[str, Any]
    value: Any
    changes: dict[int, list[tuple[str, Any]]]
    rebound: list[str]
    left: dict[str, LeftBehind] = field(default_factory=dict)
    anew: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        value = {} if self.value is NOTHING else {"_": self.value}
        changes = list(self.changes.items())
        told = {"rebound": self.rebound, "anew": self.anew}
        return {"names": self.names, "value": value, "changes": changes, **told}
