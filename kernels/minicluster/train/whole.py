"""Computes the progress of the whole training from its loops, for the scheduler and the panel."""

from __future__ import annotations

import functools
from collections.abc import Sized
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class _Loader(Protocol):
    dataset: Any


@runtime_checkable
class _KnowsItsPlace(Protocol):
    """A loader of mc.prepare(): after mc.resume(), its loop starts at the saved position."""

    dataset: Sized
    epoch: int

    def state_dict(self) -> dict[str, Any]: ...


@dataclass(eq=False)
class Loop:
    """A loop with a bar. passes: whether it is a pass over a data set; more ranks need fewer steps for it.

    begins_at: fraction of the loop that was done before it started.
    """

    total: float | None
    passes: bool
    begins_at: float = 0.0
    done: float = 0.0

    def share(self, inside: float) -> float:
        """Return the completed fraction; 0 if unknown. inside: completed fraction of the loop within it."""
        if self.total is None or not 0 < self.total < inf:
            return 0.0
        return min(1.0, self.begins_at + (self.done + inside) / self.total)


class Whole:
    """This rank's work since it started. steps: optimizer steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.gradient_bytes = 0
        self._counted: set[int] = set()
        self._follows = False
        self._loops: list[Loop] = []
        self._begun = 0
        self._before = 0.0
        self._most = 0.0

    def begin(self, iterable: object, total: float | None) -> Loop:
        """Start a loop, nested in the loops that have not ended."""
        loop = Loop(total, isinstance(iterable, _Loader), _begins_at(iterable))
        self._begun += not self._loops
        self._loops.append(loop)
        return loop

    def end(self, loop: Loop) -> None:
        """End a loop and those within it."""
        if loop in self._loops:
            at = self._loops.index(loop)
            self._before = self.done if at == 0 else self._before
            del self._loops[at:]

    @property
    def done(self) -> float:
        """Completed work: iterations of the outermost loop, or passes over its data set.

        It never decreases: a second loop in the same iteration (for example over test data) adds nothing.
        """
        if self._loops:
            inside = 0.0
            for loop in self._loops[:0:-1]:
                inside = loop.share(inside)
            first = self._loops[0]
            here = first.share(inside) if first.passes else first.done + inside
            self._most = max(self._most, self._before + here)
        return self._most

    @property
    def total(self) -> float | None:
        """The value of `done` at the end, if it can be known: further passes or loops may follow."""
        if not self._loops or self._begun > 1 or self._loops[0].passes:
            return None
        total = self._loops[0].total
        return total if total is not None and 0 <= total < inf else None

    def add(self, model: Any) -> None:
        """Add the gradient bytes of a model that all ranks train."""
        for parameter in model.parameters():
            if parameter.requires_grad and id(parameter) not in self._counted:
                self._counted.add(id(parameter))
                self.gradient_bytes += parameter.nbytes

    def follow(self, optimizer: Any) -> None:
        """Count an optimizer's steps; with several optimizers, those of the first."""
        if not self._follows:
            self._follows = True
            optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: object) -> None:
        self.steps += 1


def _begins_at(iterable: object) -> float:
    if not isinstance(iterable, _KnowsItsPlace):
        return 0.0
    place = iterable.state_dict()
    return place["consumed"] / len(iterable.dataset) if place.get("within") else 0.0


@functools.cache
def whole() -> Whole:
    """Return this process's instance."""
    return Whole()
