"""Finds the policies or placements of a folder: each module holds one, in a class of the same name."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def classes_by_name(package: str, path: Iterable[str], first: str = "") -> dict[str, str]:
    """Return `module:Class` for each module of a package without importing it: FairShare in `fair_share`.

    Modules whose names begin with an underscore are skipped. first: the name that is listed first.
    """
    names = [module.name for module in iter_modules(path) if not module.name.startswith("_")]
    return {
        name: f"{package}.{name}:{name.title().replace('_', '')}"
        for name in sorted(names, key=lambda name: (name != first, name))
    }


def load(path: str) -> Any:
    """Import the module of `module:Class` and return an instance of the class."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)()
