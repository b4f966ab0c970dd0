"""`run sweep`, on each node at `down --data`: removes the node's volumes of the cluster."""

from __future__ import annotations

import sys
from contextlib import suppress

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.engines.swarm.docker import DockerError, DockerMissing
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL


def main() -> int:
    """Remove them; return 1 if one is still in use, so that Swarm tries again."""
    daemon = Daemon.connect()
    failed = False
    found = daemon.call("volumes", filters={"label": f"{CLUSTER_LABEL}={CLUSTER}"}) or {}
    for volume in found.get("Volumes") or ():
        try:
            with suppress(DockerMissing):
                daemon.once("remove_volume", volume["Name"])
        except DockerError as error:
            sys.stderr.write(f"{volume['Name']}: {error.message}\n")
            failed = True
    return int(failed)
