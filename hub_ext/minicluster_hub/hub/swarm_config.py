"""What `configure` sets for a hub that runs as a service of a Swarm, as `up` starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicluster_hub.engines.swarm.shared_homes import volume_options
from minicluster_hub.hub.dns_client import client_options

_SECRETS = Path("/run/secrets")
_ROUTE_CHECK_S = 5


@dataclass(frozen=True)
class SwarmSettings:
    """What the environment and the secrets of the hub's service say.

    shared_homes: SERVER:/PATH[,NFS-OPTION...]; "" where homes are volumes on each node.
    """

    public_url: str
    image: str
    server_gpus: float
    share_gpus: bool
    shared_homes: str
    proxy_token: str
    service_token: str
    spawner_token: str

    @classmethod
    def read(cls, env: Mapping[str, str] = os.environ, secrets: Path = _SECRETS) -> SwarmSettings | None:
        """Return the settings; None if the hub runs on one machine without a Swarm."""
        if env.get("MINICLUSTER_ENGINE") != "swarm":
            return None
        tokens = {
            name: (secrets / name).read_text().strip()
            for name in ("proxy_token", "service_token", "spawner_token")
        }
        return cls(
            public_url=env.get("MINICLUSTER_PUBLIC_URL", ""),
            image=env["MINICLUSTER_IMAGE"],
            server_gpus=float(env.get("MINICLUSTER_SERVER_GPUS", "0")),
            share_gpus=env.get("MINICLUSTER_SHARE_GPUS") == "1",
            shared_homes=env.get("MINICLUSTER_SHARED_HOMES", ""),
            **tokens,
        )

    @property
    def service_url(self) -> str:
        return "http://service:8082"


def set_up(c: Any, settings: SwarmSettings) -> None:
    """Connect hub, proxy and spawner with the cluster's other services."""
    c.JupyterHub.bind_url = "http://:8000"
    if settings.public_url:
        c.JupyterHub.public_url = f"{settings.public_url}/"
    c.JupyterHub.hub_bind_url = "http://0.0.0.0:8081"
    c.JupyterHub.hub_connect_url = "http://hub:8081"
    # If JupyterHub does not start its proxy itself, it checks the routes only when it checks users' activity.
    c.JupyterHub.last_activity_interval = _ROUTE_CHECK_S
    for name, value in client_options().items():
        setattr(c.JupyterHubHTTPClient, name, value)
    c.ConfigurableHTTPProxy.should_start = False
    c.ConfigurableHTTPProxy.api_url = "http://proxy:8001"
    c.ConfigurableHTTPProxy.auth_token = settings.proxy_token
    c.JupyterHub.spawner_class = "minicluster_spawner.swarm.MiniclusterSpawner"
    c.Spawner.default_url = "/lab"
    c.MiniclusterSpawner.image = settings.image
    c.MiniclusterSpawner.max_gpus = settings.server_gpus
    c.MiniclusterSpawner.share_gpus = settings.share_gpus
    if settings.shared_homes:
        c.MiniclusterSpawner.shared_homes = volume_options(settings.shared_homes)
