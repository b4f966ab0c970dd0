"""Placements by name: each module of this folder is one, NAME.py with a class Name. Imported on use."""

from __future__ import annotations

from minicluster_hub.scheduling.base import Placement
from minicluster_hub.scheduling.by_name import classes_by_name, load

PLACEMENTS = classes_by_name(__name__, __path__)
"""The class of each placement, as `module:Class`."""


class UnknownPlacement(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no placement {name!r}; there are: {', '.join(sorted(PLACEMENTS))}")


def placement(name: str) -> Placement:
    """Return the placement of that name. Raises UnknownPlacement."""
    if name not in PLACEMENTS:
        raise UnknownPlacement(name)
    return load(PLACEMENTS[name])
