"""Which point of a grid comes next, where trials say step by step what they need. Pure.

A trial's path is what it has drawn so far. The trials together span a tree: each node is a parameter, each
branch one of its values. Nobody knows the tree before trials have walked it, since a cell may ask for a
parameter only `if` another one has a certain value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Path = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Visit:
    """What a trial has drawn. over: it draws nothing more. failed: it ended by an error, maybe too early."""

    path: Path
    over: bool = False
    failed: bool = False


def capacity(visits: Sequence[Visit], points: Mapping[str, Sequence[float]], path: Path = ()) -> int:
    """Return how many more trials certainly find a point of their own below a path.

    points: the values of each parameter's grid. Below a value that no trial has drawn, one point is certain.
    """
    here = [visit for visit in visits if visit.path[: len(path)] == path]
    if not here:
        return 1
    deeper = [visit for visit in here if len(visit.path) > len(path)]
    if not deeper or any(visit.over and not visit.failed for visit in here if visit.path == path):
        return 0
    name = deeper[0].path[len(path)][0]
    below = sum(capacity(deeper, points, (*path, (name, value))) for value in points[name])
    undecided = sum(not visit.over for visit in here if visit.path == path)
    return max(0, below - undecided)


def next_value(
    visits: Sequence[Visit], points: Mapping[str, Sequence[float]], path: Path, name: str
) -> float | None:
    """Return the first value for a trial at this path below which a point is free; None: there is none.

    visits: of all other trials.
    """
    for value in points[name]:
        if capacity(visits, points, (*path, (name, value))):
            return value
    return None
