"""`python -m minicluster_spawner.server`: a user's notebook server, with a faster start."""

from __future__ import annotations

import sys
from typing import Any

from minicluster_hub.hub.quick_import import import_quickly

SERVER_ARGUMENTS = (
    "--ServerApp.log_level=WARN",
    # A login shell would reset PATH; this one finds the same python as the kernels.
    '--ServerApp.terminado_settings={"shell_command": ["/bin/bash"]}',
    # Seconds that the hub's answer about a browser is cached: a changed password ends its session then.
    "--HubOAuth.cache_max_age=45",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)
"""Arguments of every notebook server, for all spawners."""


def without_resolver(modules: dict[str, Any] = sys.modules) -> None:
    """Make `import aiodns` fail in this process, so that JupyterHub's client uses the system's resolver.

    aiodns caches a name as long as its DNS server allows: 600 s in Docker's networks. If the hub gets a new
    address, no server could reach it for that long.
    """
    modules.setdefault("aiodns", None)


if __name__ == "__main__":
    import_quickly()
    without_resolver()
    from jupyterhub.singleuser import main

    main()
