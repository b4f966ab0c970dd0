"""When a notebook is opened, a gang is started for its first cell, if slots are free."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from jupyter_server.serverapp import ServerApp

from minicluster.client.client import IMAGE_VARIABLE
from minicluster.errors import MiniclusterError
from minicluster.server_extension.clusters import Clusters

_KERNEL_ACTIONS = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"


def prepare_with_kernels(server: ServerApp, clusters: Clusters) -> None:
    """Ask the hub's cluster for a gang with each Python kernel that starts here."""
    if server.web_app is None or not clusters.has_hub:
        return
    parts = server.web_app.settings

    async def acted(logger: object, schema_id: str, data: dict[str, Any]) -> None:
        if data["action"] == "start" and data["status"] == "success":
            spec = parts["kernel_spec_manager"].get_kernel_spec(data["kernel_name"])
            if spec.language == "python":
                await asyncio.to_thread(_prepare, server, clusters)

    parts["event_logger"].add_listener(schema_id=_KERNEL_ACTIONS, listener=acted)


def _prepare(server: ServerApp, clusters: Clusters) -> None:
    """The first cell comes later if this fails; nobody has asked for it."""
    try:
        service = clusters.service(clusters.addresses()[0])
        nodes = service.prepare_gang(os.environ.get(IMAGE_VARIABLE))
    except MiniclusterError as error:
        server.log.debug("no gang was prepared: %s", error)
    else:
        server.log.debug("a gang was prepared on %s", ", ".join(nodes) or "no node")
