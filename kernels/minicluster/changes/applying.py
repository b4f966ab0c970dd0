"""Putting what came back into the notebook's own objects: all of it, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from minicluster.capture.payload import LeftBehind
from minicluster.changes.aspects import Undo
from minicluster.changes.known import Known
from minicluster.changes.sameness import same
from minicluster.changes.tracking import Tracker
from minicluster.changes.trees import leading, listed, reached, shown_at
from minicluster.errors import MiniclusterError
from minicluster.pickling.refusal import type_name

States = list[tuple[str, Any]]


class ResultConflict(MiniclusterError):
    """What a cell changed has changed in the notebook meanwhile, too."""


@dataclass(frozen=True)
class Returned:
    """Names that came back, and those of them that the cell itself does not assign."""

    names: Mapping[str, Any]
    rebound: tuple[str, ...]


class Sent:
    """What a notebook sent with a cell, and how it stood then.

    names: what was sent. namespace: of the whole notebook.
    copies: it is no one's own but was made anew from what was sent: nothing can have changed since.
    """

    def __init__(
        self,
        known: Known,
        names: Mapping[str, Any],
        namespace: Mapping[str, Any] | None = None,
        copies: bool = False,
    ) -> None:
        self.known = known
        self.names = dict(names)
        self.copies = copies
        self.tracker = Tracker(known)
        self._bound = dict(namespace or {})
        self._moved: set[int] | None = None

    def before_reading(self) -> None:
        """Note what has changed here. Reading makes classes, which one of the notebook may put on a list."""
        if any(isinstance(obj, type) for obj in self.known.objects.values()):
            found = self.tracker.changed(settled=False)
            self._moved = {*found.now, *found.broken}

    def leading(self, ids: set[int]) -> list[str]:
        """Return the names that led to any of these when they were sent."""
        return leading(self.tracker.anatomy, self.names, ids) if ids else []

    def changed_here(
        self, changes: list[tuple[int, States]], result: Returned, now: Mapping[str, Any]
    ) -> list[str]:
        """Return names of what has changed here since it was sent, of what came back."""
        found = self.tracker.changed([number for number, _ in changes])
        moved_here = {*found.now, *found.broken}
        if self._moved is not None:
            moved_here &= self._moved
        led = self.leading(self._ids(moved_here))
        if moved_here and not led:
            led = ["what the cell changed"]
        # A name that stands for something else now: what the cell changed would be seen by nobody.
        elsewhere = [
            n for n, value in self.names.items() if n not in result.names and now.get(n) is not value
        ]
        ids = self._ids([number for number, _ in changes]) if elsewhere else set()
        lost = set(elsewhere) & set(self.leading(ids))
        moved = [name for name in result.rebound if not same(self._bound.get(name), now.get(name))]
        return sorted({*led, *lost, *moved})

    def _ids(self, numbers: Iterable[int]) -> set[int]:
        return {id(self.known.objects[number]) for number in numbers}


@dataclass
class Putter:
    """Puts changes into the objects that were sent."""

    sent: Sent

    def put(self, changes: list[tuple[int, States]], then: Callable[[], None]) -> None:
        """Put all and do what comes then; on any error put back what was there, and raise it."""
        undo: list[Undo] = []
        try:
            for late in (False, True):
                if late:
                    then()
                self._put(changes, late, undo)
        except BaseException:
            for step in reversed(undo):
                step()
            raise
        self._tell_autograd(changes)

    def _put(self, changes: list[tuple[int, States]], late: bool, undo: list[Undo]) -> None:
        anatomy, objects = self.sent.tracker.anatomy, self.sent.known.objects
        for number, states in changes:
            for code, state in states:
                aspect = anatomy.by_code[code]
                if aspect.late == late:
                    undo.append(aspect.put(objects[number], state))

    def _tell_autograd(self, changes: list[tuple[int, States]]) -> None:
        """Have an old graph's backward fail instead of computing with values that are new."""
        storages = {number for number, states in changes if states and states[0][0] == "memory"}
        if not storages:
            return
        torch = sys.modules["torch"]
        known = self.sent.known
        for obj in known.objects.values():
            if isinstance(obj, torch.Tensor) and obj.layout is torch.strided:
                with suppress(Exception):  # Tensors of inference mode have no versions.
                    if known.storage(obj.untyped_storage()) in storages:
                        torch.autograd.graph.increment_version(obj)


def check_unchanged(
    sent: Sent,
    changes: list[tuple[int, States]],
    result: Returned,
    namespace: Mapping[str, Any],
    job_id: int,
) -> None:
    """Raises ResultConflict when anything that is to be changed has been changed here."""
    names = sent.changed_here(changes, result, namespace)
    if names:
        shown = ", ".join(f"`{name}`" for name in names)
        raise ResultConflict(
            f"{shown} changed here while job {job_id} ran; nothing was put back.",
            f"For copies of what the job made: %distribute result {job_id} --pull {','.join(names)}",
        )


def hold_back(
    sent: Sent, changes: list[tuple[int, States]], broken: Mapping[str, str], names: dict[str, Any]
) -> tuple[list[tuple[int, States]], list[LeftBehind]]:
    """Leave out variables of which something cannot be put here, as a whole. Returns what remains."""
    anatomy, objects = sent.tracker.anatomy, sent.known.objects
    bad = {number: broken[f"#{number}"] for number, _ in changes if f"#{number}" in broken}
    for number, states in changes:
        for code, state in states:
            if reason := number not in bad and anatomy.refuses(objects[number], code, state):
                bad[number] = reason
    left: list[LeftBehind] = []
    for number, reason in bad.items():
        led = sent.leading({id(objects[number])})
        where = shown_at(objects[number], {name: sent.names[name] for name in led})
        reason = f"{reason}; so nothing of {listed(led or [where])} came"
        left.append(LeftBehind(where, type_name(objects[number]), reason))
        ids = reached(anatomy, [objects[number], *(sent.names[name] for name in led)])
        changes = [change for change in changes if id(objects[change[0]]) not in ids]
        for name in leading(anatomy, names, {id(objects[number])}):
            del names[name]
    return changes, left
