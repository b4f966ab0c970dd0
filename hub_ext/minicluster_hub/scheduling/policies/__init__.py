"""Policies by name: each module of this folder is one, NAME.py with a class Name. Imported on use."""

from __future__ import annotations

from minicluster_hub.scheduling.base import Policy
from minicluster_hub.scheduling.by_name import classes_by_name, load

POLICIES = classes_by_name(__name__, __path__, first="fifo")
"""The class of each policy, as `module:Class`."""


class UnknownPolicy(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no policy {name!r}; there are: {', '.join(sorted(POLICIES))}")


def policy(name: str) -> Policy:
    """Return the policy of that name. Raises UnknownPolicy."""
    if name not in POLICIES:
        raise UnknownPolicy(name)
    return load(POLICIES[name])
