"""What `configure(c, engine="kubernetes")` sets for a hub that zero-to-jupyterhub installed.

The chart has set everything about the hub itself before. So this adds, and replaces nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVICE_PORT = 8082
_TOKENS = tuple(Path("/usr/local/etc/jupyterhub", name) for name in ("existing-secret", "secret"))
"""Where the chart shows the hub Secrets, with a file for each token: a lab's own, and its own."""


class HubNotReady(ValueError):
    """The chart's values lack something; the message says what to add."""


@dataclass(frozen=True)
class KubernetesSettings:
    """service_url: of the job service, for the hub. proxy_url: of the proxy, for servers: plain HTTP.

    service, spawner: names of the services in the chart's `hub.services`.
    """

    service_url: str = f"http://minicluster:{SERVICE_PORT}"
    proxy_url: str = "http://proxy-public"
    image: str = ""
    service: str = "minicluster"
    spawner: str = "minicluster-spawner"

    @classmethod
    def read(cls, env: Mapping[str, str] = os.environ) -> KubernetesSettings:
        """Return the settings of the hub pod's variables, which the values set by `hub.extraEnv`."""
        default = cls()
        # Where the proxy has a certificate of Let's Encrypt, its usual address leads to its public name.
        proxy_url = "http://proxy-http:8000" if env.get("PROXY_HTTP_SERVICE_HOST") else default.proxy_url
        return cls(
            service_url=env.get("MINICLUSTER_SERVICE_URL", default.service_url).rstrip("/"),
            proxy_url=env.get("MINICLUSTER_PROXY_URL", proxy_url).rstrip("/"),
            image=env.get("MINICLUSTER_IMAGE", ""),
        )


def in_a_pod(env: Mapping[str, str] = os.environ) -> bool:
    """Tell whether this process runs in a pod."""
    return bool(env.get("KUBERNETES_SERVICE_HOST"))


def set_up(c: Any, settings: KubernetesSettings, oauth_scopes: list[str]) -> None:
    """Let the job service log users in, and have servers take their GPUs from its ledger. Raises HubNotReady.

    oauth_scopes: that it may ask users' browsers for.
    """
    service = _service(c, settings.service)
    service.update(
        url=service.get("url") or settings.service_url,
        display=True,
        oauth_no_confirm=True,
        oauth_client_allowed_scopes=oauth_scopes,
    )
    _service(c, settings.spawner)["display"] = False
    c.JupyterHub.spawner_class = "minicluster_spawner.kubernetes.spawner.MiniclusterKubeSpawner"
    base_url = str(c.JupyterHub.get("base_url", "/")).rstrip("/")
    c.MiniclusterKubeSpawner.service_url = f"{settings.service_url}{base_url}/services/{settings.service}/"
    c.MiniclusterKubeSpawner.ledger_token_file = str(_token_file(settings.spawner))
    if settings.image:
        c.KubeSpawner.image = settings.image


def _token_file(service: str) -> Path:
    """Return the file with a service's token."""
    files = [folder / f"hub.services.{service}.apiToken" for folder in _TOKENS]
    return next((file for file in files if file.exists()), files[-1])


def _service(c: Any, name: str) -> dict[str, Any]:
    """Return a service that the chart made, with its token. Raises HubNotReady."""
    listed = c.JupyterHub.services if isinstance(c.JupyterHub.services, list) else []
    for service in listed:
        if service.get("name") == name:
            return service
    raise HubNotReady(
        f"configure(engine='kubernetes'): the hub has no service {name!r}. Add it to the values of "
        f"JupyterHub's chart: hub.services.{name}: {{}} (chart/jupyterhub.yaml has all of them)."
    )
