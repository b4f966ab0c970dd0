"""What every notebook server is started with, whichever spawner starts it."""

from __future__ import annotations

SERVER_ARGUMENTS = (
    "--ServerApp.log_level=WARN",
    # A login shell would reset PATH; this one finds the same python as the kernels.
    '--ServerApp.terminado_settings={"shell_command": ["/bin/bash"]}',
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
)
