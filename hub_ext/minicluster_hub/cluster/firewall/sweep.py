"""`run sweep`, on each node at `down`: removes the firewall's rules; with --volumes also our volumes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.firewall import program
from minicluster_hub.engines.swarm.docker import DockerError, DockerMissing
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL

VOLUMES = "--volumes"
_EMPTY = f"{CLUSTER}_eviction"
"""Always empty: the disk guard measures the volumes' disk at its mount."""


def main(words: Sequence[str]) -> int:
    """Return 1 if a volume could not be removed, so that Swarm tries again."""
    program.remove()
    return _remove_volumes(every=VOLUMES in words)


def _remove_volumes(*, every: bool) -> int:
    daemon = Daemon.connect()
    failed = False
    found = daemon.call("volumes", filters={"label": f"{CLUSTER_LABEL}={CLUSTER}"}) or {}
    names = [volume["Name"] for volume in found.get("Volumes") or ()]
    for name in names if every else {_EMPTY}.intersection(names):
        try:
            with suppress(DockerMissing):
                daemon.once("remove_volume", name)
        except DockerError as error:
            sys.stderr.write(f"{name}: {error.message}\n")
            failed = True
    return int(failed)
