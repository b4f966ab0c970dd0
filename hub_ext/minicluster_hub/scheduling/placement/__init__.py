"""Placements by name, imported on use."""

from __future__ import annotations

from importlib import import_module

from minicluster_hub.scheduling.base import Placement

PLACEMENTS = {
    "pack": "minicluster_hub.scheduling.placement.pack:Pack",
    "spread": "minicluster_hub.scheduling.placement.spread:Spread",
    "locality": "minicluster_hub.scheduling.placement.locality:Locality",
    "dltap": "minicluster_hub.scheduling.placement.dltap:Dltap",
    "round_robin": "minicluster_hub.scheduling.placement.round_robin:RoundRobin",
}


class UnknownPlacement(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no placement {name!r}; there are: {', '.join(sorted(PLACEMENTS))}")


def placement(name: str) -> Placement:
    """Return the placement of that name. Raises UnknownPlacement."""
    if name not in PLACEMENTS:
        raise UnknownPlacement(name)
    module, _, attribute = PLACEMENTS[name].partition(":")
    return getattr(import_module(module), attribute)()
