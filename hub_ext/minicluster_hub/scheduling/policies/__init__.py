"""Policies by name, imported on use."""

from __future__ import annotations

from importlib import import_module

from minicluster_hub.scheduling.base import Policy

POLICIES = {"fifo": "minicluster_hub.scheduling.policies.fifo:Fifo"}


class UnknownPolicy(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no policy {name!r}; there are: {', '.join(sorted(POLICIES))}")


def policy(name: str) -> Policy:
    """Return the policy of that name. Raises UnknownPolicy."""
    if name not in POLICIES:
        raise UnknownPolicy(name)
    module, _, attribute = POLICIES[name].partition(":")
    return getattr(import_module(module), attribute)()
