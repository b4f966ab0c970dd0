"""The service that ends whoever fills a node's disk."""

from __future__ import annotations

from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.cluster.plan.drafts import ROOT, SMALL_BYTES, Draft, Facts, limits
from minicluster_hub.cluster.eviction.rules import RESERVE_ENV, VOLUME_DIR, VOLUMES_ENV


def eviction(choices: Choices, facts: Facts) -> Draft:
    """Return one for each node. It is root without rights: the socket's group has another number on each."""
    return Draft(
        role="eviction",
        image=facts.images.hub,
        args=("run", "eviction"),
        environment={
            RESERVE_ENV: str(choices.disk_reserve_bytes),
            VOLUMES_ENV: "0" if choices.shared_homes else "1",
        },
        data_dir=VOLUME_DIR,
        user=ROOT,
        socket=True,
        everywhere=True,
        read_only=True,
        limits=limits(SMALL_BYTES, 64),
    )
