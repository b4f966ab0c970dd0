"""`python -m minicluster_spawner.server`: a user's notebook server, which starts faster."""

from __future__ import annotations

import sys
from typing import Any

from minicluster_hub.hub.quick_import import import_quickly

SERVER_ARGUMENTS = (
    "--ServerApp.log_level=WARN",
    # Not a login shell, which would reset PATH: this one finds the same python as the kernels.
    '--ServerApp.terminado_settings={"shell_command": ["/bin/bash"]}',
    # Seconds that the hub's answer about a browser is cached: after a changed password its session ends.
    "--HubOAuth.cache_max_age=45",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)
"""Arguments of every notebook server, for all spawners."""


def without_resolver(modules: dict[str, Any] = sys.modules) -> None:
    """Make `import aiodns` fail in this process, so that JupyterHub's client resolves names by the system.

    aiodns caches a name as long as its DNS server allows: 600 s in Docker's networks. After the hub got a new
    address, no server would reach it for that long.
    """
    modules.setdefault("aiodns", None)


if __name__ == "__main__":
    import_quickly()
    without_resolver()
    from jupyterhub.singleuser import main

    main()
