"""Lets custom policies that were written for an earlier release use that release's names."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

_Kind = TypeVar("_Kind", bound=type)


def also_read_as(**old_names: str) -> Callable[[_Kind], _Kind]:
    """Let attributes of a class be read by their old names, too: `old=new`."""

    def decorated(kind: _Kind) -> _Kind:
        for old, new in old_names.items():
            setattr(kind, old, property(attrgetter(new)))
        return kind

    return decorated


def also_has(**old_methods: Callable[..., object]) -> Callable[[_Kind], _Kind]:
    """Add methods that a class had in an earlier release."""

    def decorated(kind: _Kind) -> _Kind:
        for old, method in old_methods.items():
            setattr(kind, old, method)
        return kind

    return decorated


def also_made_with(**old_names: str) -> Callable[[_Kind], _Kind]:
    """Let old names of fields be read, and be keywords of the constructor."""

    def decorated(kind: _Kind) -> _Kind:
        made: Callable[..., None] = kind.__init__

        def init(self: object, *values: Any, **named: Any) -> None:
            renamed = {old_names[name]: named.pop(name) for name in old_names if name in named}
            made(self, *values, **{**named, **renamed})  # `replace` also passes the field under its new name.

        kind.__init__ = init
        return also_read_as(**old_names)(kind)

    return decorated
