"""What is wished for of a rank's work, and what of it goes back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from minicluster.capture.payload import LeftBehind

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
