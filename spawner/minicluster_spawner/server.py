"""`python -m minicluster_spawner.server`: a user's notebook server, imported faster."""

from __future__ import annotations

import sys
from typing import Any

from minicluster_hub.hub.quick_import import import_quickly

SERVER_ARGUMENTS = (
    "--ServerApp.log_level=WARN",
    # A login shell would reset PATH; this one finds the same python as the kernels.
    '--ServerApp.terminado_settings={"shell_command": ["/bin/bash"]}',
    # The hub's word about a browser, in seconds: after a changed password its session ends here as well.
    "--HubOAuth.cache_max_age=45",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)
"""What every notebook server is started with, whichever spawner starts it."""


def without_resolver(modules: dict[str, Any] = sys.modules) -> None:
    """Make `import aiodns` fail in this process, so that names are asked of the system each time.

    JupyterHub's client resolves by it, and it keeps a name as long as its DNS server allows: 600 s in
    Docker's networks. A hub that got a new address is away that long for every server.
    """
    modules.setdefault("aiodns", None)


if __name__ == "__main__":
    import_quickly()
    without_resolver()
    from jupyterhub.singleuser import main

    main()
