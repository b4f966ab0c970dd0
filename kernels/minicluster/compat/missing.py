"""The error for a function that an adapter does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from minicluster.errors import MiniclusterError


class NotInAdapter(MiniclusterError, AttributeError):
    """Code calls a function of another tracker that has no counterpart here."""


def refusing(library: str, names: Iterable[str]) -> Callable[[str], Any]:
    """Return a module's __getattr__ that names what the adapter has."""
    there = ", ".join(sorted(names))

    def refuse(name: str) -> NoReturn:
        if name.startswith("__"):  # Asked by Python and by tools, for example by copy and inspect.
            raise AttributeError(name)
        raise NotInAdapter(
            f"minicluster.compat.{library} has no {name!r}; it has {there}.",
            f"Use mc.log, mc.Image, mc.Histogram, mc.Table or mc.output instead, or {library} itself.",
        )

    return refuse
