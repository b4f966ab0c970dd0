"""Classes of the random graphs of test_changes_drawn.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Plain:
    def __init__(self, a: Any, mark: int) -> None:
        self.a, self.mark = a, mark


class Slots:
    __slots__ = ("__weakref__", "a", "mark")

    def __init__(self, a: Any, mark: int) -> None:
        self.a, self.mark = a, mark


@dataclass(eq=False)
class Data:
    a: Any
    mark: int


class Listed(list[Any]):
    """A list with attributes."""
