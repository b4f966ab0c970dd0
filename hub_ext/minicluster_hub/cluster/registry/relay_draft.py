"""The relay as a service of the platform: pure."""

from __future__ import annotations

from minicluster_hub.cluster.plan.drafts import CACHE_PORT, REGISTRY_PORT, SMALL_BYTES, Draft, Facts, limits
from minicluster_hub.cluster.registry.relay import CACHE_ENV, NODE_ENV, PUBLISH_NODE_ENV, REGISTRY_ENV


def relay(facts: Facts) -> Draft:
    """Each node's doors to the registry; a hub image that was never published is on the manager only."""
    environment = {
        REGISTRY_ENV: facts.doors(REGISTRY_PORT),
        PUBLISH_NODE_ENV: ",".join(facts.managers or (facts.manager_id,)),
        NODE_ENV: "{{.Node.ID}}",
    }
    if facts.upstream:
        environment[CACHE_ENV] = facts.doors(CACHE_PORT)
    return Draft(
        role="relay",
        image=facts.images.hub,
        args=("run", "relay"),
        environment=environment,
        secrets=("registry_ca", "registry_reader"),
        everywhere=True,
        limits=limits(SMALL_BYTES, 64),
    )
