"""The job service of bench/transfer.py: each node's tasks run on a host of their own, a network namespace.

Arguments: the namespaces, in the order of the nodes; then the service's own options.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from minicluster_hub import app
from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.local.engine import LocalEngine

HOSTS = sys.argv[1].split(",")


class HostsEngine(LocalEngine):
    """Nodes that have no disk in common with the service, as on several machines."""

    async def start(self, launch: TaskLaunch) -> None:
        self._host = HOSTS[int(launch.node.removeprefix("node-")) - 1]
        await super().start(launch)

    def _command(self) -> list[str]:
        return ["ip", "netns", "exec", self._host, *super()._command()]

    def _environment(self, launch: TaskLaunch, scratch: Path) -> dict[str, str]:
        environment = super()._environment(launch, scratch)
        del environment["MINICLUSTER_SERVICE_BLOBS"]
        return environment | {"GLOO_SOCKET_IFNAME": "eth0", "PATH": os.environ["PATH"]}


if __name__ == "__main__":
    app.engine_class = lambda name: HostsEngine  # type: ignore[assignment]
    app.main(sys.argv[2:])
