"""The names that a custom policy written for an earlier release uses; they work as the new ones do."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

_Kind = TypeVar("_Kind", bound=type)


def also_read_as(**old_names: str) -> Callable[[_Kind], _Kind]:
    """Let the attributes of a class be read by their old names, too: `old=new`."""

    def decorated(kind: _Kind) -> _Kind:
        for old, new in old_names.items():
            setattr(kind, old, property(attrgetter(new)))
        return kind

    return decorated


def also_made_with(**old_names: str) -> Callable[[_Kind], _Kind]:
    """The same, and the class takes the old names as keywords."""

    def decorated(kind: _Kind) -> _Kind:
        made: Callable[..., None] = kind.__init__

        def init(self: object, *values: Any, **named: Any) -> None:
            made(self, *values, **{old_names.get(name, name): value for name, value in named.items()})

        kind.__init__ = init
        return also_read_as(**old_names)(kind)

    return decorated
