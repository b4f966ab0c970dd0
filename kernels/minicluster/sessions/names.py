"""What a rank of a session has: the names of its `__main__`, with what each of them is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

_SHOWN_CHARS = 60
_OWN = ("exit", "quit", "open", "display")


def show(namespace: Mapping[str, Any]) -> None:
    """Print a table of the names, as IPython's %whos does."""
    rows = [(name, type(value).__name__, _brief(value)) for name, value in _named(namespace)]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for name, kind, value in rows:
        print(f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {value}".rstrip())  # noqa: T201
    if not rows:
        print("The ranks have no names yet.")  # noqa: T201


def tell(namespace: Mapping[str, Any]) -> None:
    """Print the names as JSON, for the notebook."""
    print(json.dumps([name for name, _ in _named(namespace)]))  # noqa: T201


def _named(namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(
        (name, value) for name, value in namespace.items() if not name.startswith("_") and name not in _OWN
    )


def _brief(value: Any) -> str:
    """Return a value on one line: of tensors and arrays, what they are and not what they have."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        device = getattr(value, "device", "")
        return f"{tuple(shape)} {dtype} {device}".rstrip()
    if isinstance(value, ModuleType):
        return value.__name__
    try:
        text = " ".join(repr(value).split())
    except Exception as error:  # Any code of the user's classes.
        text = f"<its repr() raises {type(error).__name__}>"
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
