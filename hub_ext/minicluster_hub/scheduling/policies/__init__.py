"""Policies by name, imported on use."""

from __future__ import annotations

from importlib import import_module

from minicluster_hub.scheduling.base import Policy

POLICIES = {
    "fifo": "minicluster_hub.scheduling.policies.fifo:Fifo",
    "round_robin": "minicluster_hub.scheduling.policies.round_robin:RoundRobin",
    "time_slice": "minicluster_hub.scheduling.policies.time_slice:TimeSlice",
    "backfill": "minicluster_hub.scheduling.policies.backfill:Backfill",
    "priority": "minicluster_hub.scheduling.policies.priority:Priority",
    "fair_share": "minicluster_hub.scheduling.policies.fair_share:FairShare",
    "srtf": "minicluster_hub.scheduling.policies.srtf:Srtf",
    "las": "minicluster_hub.scheduling.policies.las:Las",
    "elastic_fifo": "minicluster_hub.scheduling.policies.elastic_fifo:ElasticFifo",
    "elastic_srtf": "minicluster_hub.scheduling.policies.elastic_srtf:ElasticSrtf",
    "goodput": "minicluster_hub.scheduling.policies.goodput:Goodput",
}


class UnknownPolicy(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no policy {name!r}; there are: {', '.join(sorted(POLICIES))}")


def policy(name: str) -> Policy:
    """Return the policy of that name. Raises UnknownPolicy."""
    if name not in POLICIES:
        raise UnknownPolicy(name)
    module, _, attribute = POLICIES[name].partition(":")
    return getattr(import_module(module), attribute)()
