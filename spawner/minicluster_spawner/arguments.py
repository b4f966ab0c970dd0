"""What every notebook server is started with, whichever spawner starts it."""

from __future__ import annotations

SERVER_ARGUMENTS = (
    "--ServerApp.log_level=WARN",
    # A login shell would reset PATH; this one finds the same python as the kernels.
    '--ServerApp.terminado_settings={"shell_command": ["/bin/bash"]}',
    # The hub's word about a browser, in seconds: after a changed password its session ends here as well.
    "--HubOAuth.cache_max_age=45",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)
