"""The policies that installed packages bring: metadata names them, a policy's process imports them."""

from __future__ import annotations

from importlib.metadata import entry_points

from minicluster.wire import OfferedPolicy
from minicluster_hub.rules.child import GROUP
from minicluster_hub.scheduling.policies import POLICIES


def installed() -> dict[str, str]:
    """Return where each of them is, as `module:object`. The names of the built-in ones are theirs."""
    return {point.name: point.value for point in entry_points(group=GROUP) if point.name not in POLICIES}


def offered_installed() -> list[OfferedPolicy]:
    found: dict[str, OfferedPolicy] = {}
    for point in entry_points(group=GROUP):
        if point.name not in POLICIES and point.dist is not None:
            about = str(point.dist.metadata.json.get("summary", "")) or "A policy that was installed."
            whose = f"{point.dist.name} {point.dist.version}"
            found[point.name] = OfferedPolicy(name=point.name, summary=about, distribution=whose)
    return [found[name] for name in sorted(found)]
