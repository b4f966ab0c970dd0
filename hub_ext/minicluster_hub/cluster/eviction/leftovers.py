"""Removes the containers that an engine forgot: a program that `run eviction` starts once, on each node.

An engine that dies while it removes a task's container drops the task from its list when it starts, and the
container stays for ever. Whatever ended before the engine's start is never started again by Swarm.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.eviction.rules import TENANTS
from minicluster_hub.engines.swarm.docker import DockerConflict, DockerError, DockerMissing
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL, ROLE_LABEL

_ENDED = ["created", "exited", "dead"]

log = logging.getLogger(__name__)


def remove_leftovers(daemon: Daemon, before: float) -> None:
    """Remove tenants' containers that have ended, and were made before that (seconds since the epoch)."""
    for role in TENANTS:
        labels = [f"{CLUSTER_LABEL}={CLUSTER}", f"{ROLE_LABEL}={role}"]
        for one in daemon.once("containers", all=True, filters={"label": labels, "status": _ENDED}):
            if one["Created"] < before:
                log.warning("the engine forgot %s (%s): it is removed", one["Names"], one["Status"])
                with suppress(DockerMissing, DockerConflict):
                    daemon.once("remove_container", one["Id"], force=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        remove_leftovers(Daemon.connect(), float(sys.argv[1]))
    except DockerError as error:
        log.warning("the engine does not say what it has: %s", error)
