"""Applies a result's changes to the notebook's own objects: all of them, or none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from minicluster.capture.payload import LeftBehind
from minicluster.changes.aspects import Undo
from minicluster.changes.equality import same
from minicluster.changes.reachability import leading, listed, reached, shown_at
from minicluster.changes.shared_objects import SharedObjects
from minicluster.changes.tracking import Tracker
from minicluster.errors import MiniclusterError
from minicluster.pickling.refusal import type_name

Changes = list[tuple[int, list[tuple[str, Any]]]]
"""For each object, its number, and the code and delta of each aspect that changed."""


class ResultConflict(MiniclusterError):
    """An object that the cell changed was also changed in the notebook meanwhile."""


class SentObjects:
    """The objects that a notebook sent with a cell, and their state at that time.

    names: the names that were sent. namespace: of the whole notebook.
    copies: whether these are new copies of what was sent; nothing else can have changed those.
    """

    def __init__(
        self,
        shared: SharedObjects,
        names: Mapping[str, Any],
        namespace: Mapping[str, Any] | None = None,
        copies: bool = False,
    ) -> None:
        self.shared = shared
        self.names = dict(names)
        self.copies = copies
        self.tracker = Tracker(shared)
        self._bound = dict(namespace or {})
        self._moved: set[int] | None = None

    def before_reading(self) -> None:
        """Record what has changed here. Unpickling makes classes, which the notebook's own may register."""
        if any(isinstance(obj, type) for obj in self.shared.objects.values()):
            found = self.tracker.changed(settled=False)
            self._moved = {*found.now, *found.broken}

    def leading(self, numbers: Iterable[int]) -> list[str]:
        """Return the names that led to any of these objects when they were sent."""
        ids = {id(self.shared.objects[number]) for number in numbers}
        return leading(self.tracker.anatomy, self.names, ids) if ids else []

    def check_unchanged(
        self,
        changes: Changes,
        names: Mapping[str, Any],
        rebound: Iterable[str],
        namespace: Mapping[str, Any],
        job_id: int,
    ) -> None:
        """Raise ResultConflict if an object that the result changes was changed here meanwhile.

        names: what was returned. rebound: those of these names that the cell itself does not assign.
        """
        moved = self._changed_here(changes, names, rebound, namespace)
        if moved:
            shown = ", ".join(f"`{name}`" for name in moved)
            raise ResultConflict(
                f"{shown} changed here while job {job_id} ran; nothing was put back.",
                f"For copies of what the job made: %distribute result {job_id} --pull {','.join(moved)}",
            )

    def _changed_here(
        self, changes: Changes, names: Mapping[str, Any], rebound: Iterable[str], namespace: Mapping[str, Any]
    ) -> list[str]:
        numbers = [number for number, _ in changes]
        found = self.tracker.changed(numbers)
        moved_here = {*found.now, *found.broken}
        if self._moved is not None:
            moved_here &= self._moved
        led = self.leading(moved_here)
        if moved_here and not led:
            led = ["what the cell changed"]
        # A name refers to another object now: the cell's changes to the old one would be invisible.
        elsewhere = {
            name
            for name, value in self.names.items()
            if name not in names and namespace.get(name) is not value
        }
        lost = elsewhere.intersection(self.leading(numbers)) if elsewhere else set()
        moved = [name for name in rebound if not same(self._bound.get(name), namespace.get(name))]
        return sorted({*led, *lost, *moved})

    def hold_back(
        self, changes: Changes, broken: Mapping[str, str], names: dict[str, Any]
    ) -> tuple[Changes, list[LeftBehind]]:
        """Leave out whole variables if a change to them cannot be applied here. Return the other changes."""
        anatomy, objects = self.tracker.anatomy, self.shared.objects
        bad = {number: broken[f"#{number}"] for number, _ in changes if f"#{number}" in broken}
        for number, deltas in changes:
            for code, delta in deltas:
                if reason := number not in bad and anatomy.refuses(objects[number], code, delta):
                    bad[number] = reason
        left: list[LeftBehind] = []
        for number, reason in bad.items():
            obj, led = objects[number], self.leading([number])
            where = shown_at(obj, {name: self.names[name] for name in led})
            reason = f"{reason}; so nothing of {listed(led or [where])} came"
            left.append(LeftBehind(where, type_name(obj), reason))
            ids = reached(anatomy, [obj, *(self.names[name] for name in led)])
            changes = [change for change in changes if id(objects[change[0]]) not in ids]
            for name in leading(anatomy, names, {id(obj)}):
                del names[name]
        return changes, left

    def put(self, changes: Changes, then: Callable[[], None]) -> None:
        """Apply all changes, and call `then`. After an error, undo everything and raise it."""
        undo: list[Undo] = []
        try:
            self._put(changes, False, undo)
            then()
            self._put(changes, True, undo)
        except BaseException:
            for step in reversed(undo):
                step()
            raise
        self._tell_autograd(changes)

    def _put(self, changes: Changes, late: bool, undo: list[Undo]) -> None:
        for number, deltas in changes:
            for code, delta in deltas:
                aspect = self.tracker.anatomy.by_code[code]
                if aspect.late == late:
                    undo.append(aspect.apply(self.shared.objects[number], delta))

    def _tell_autograd(self, changes: Changes) -> None:
        """Make `backward` of an older graph fail: it would compute with the new values."""
        storages = {number for number, deltas in changes if deltas and deltas[0][0] == "memory"}
        if not storages:
            return
        torch = sys.modules["torch"]
        for obj in self.shared.objects.values():
            if isinstance(obj, torch.Tensor) and obj.layout is torch.strided:
                with suppress(Exception):  # Inference tensors have no version counter.
                    if self.shared.storage(obj.untyped_storage()) in storages:
                        torch.autograd.graph.increment_version(obj)
