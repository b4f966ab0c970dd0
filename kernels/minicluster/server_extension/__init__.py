"""Endpoints of the Jupyter server for our JupyterLab extension: follow, stop and list jobs.

The server authenticates at the job service with its own token, so a page needs no second log-in.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "minicluster.server_extension"}]


def _load_jupyter_server_extension(server: ServerApp) -> None:
    """Add the handlers; set the variable by which kernels know that this server's pages draw panels."""
    from minicluster.origin import SERVER_VARIABLE
    from minicluster.server_extension.clusters import Clusters
    from minicluster.server_extension.handlers import routes
    from minicluster.server_extension.prepared_gang import prepare_with_kernels

    clusters = Clusters()
    if server.web_app is not None:
        server.web_app.add_handlers(".*$", routes(server.web_app.settings["base_url"], clusters))
    prepare_with_kernels(server, clusters)
    os.environ[SERVER_VARIABLE] = "1"
