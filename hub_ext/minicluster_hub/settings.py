"""Where this cluster stores its data and listens; `./run` sets it through the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minicluster_hub.support.processes import DATA_LABEL


@dataclass(frozen=True)
class Ports:
    """Loopback ports behind the public one."""

    hub: int = 8081
    proxy: int = 8001
    service: int = 8082


@dataclass(frozen=True)
class Settings:
    """The settings that `configure` uses.

    host, port: the address for browsers. domain: the hub's domain, with subdomains for users; "": all users
        share one address. nodes: virtual nodes of the engine `local`.
    policies_dir: folder of the lab's own policies; None: in the data folder.
    """

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    nodes: int = 3
    ports: Ports = Ports()
    policies_dir: Path | None = None
    domain: str = ""

    @property
    def browsers_url(self) -> str:
        """The hub's URL as people type it."""
        return f"http://{self.domain}:{self.port}" if self.domain else self.url

    @property
    def url(self) -> str:
        """The hub's URL on this machine."""
        return f"http://{_in_url(self.reachable_host)}:{self.port}"

    @property
    def bind_url(self) -> str:
        return f"http://{_in_url(self.host)}:{self.port}"

    @property
    def reachable_host(self) -> str:
        """The host at which this machine itself reaches the public port."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104

    def environment(self) -> dict[str, str]:
        """Return the variables from which `from_environment` reads these settings."""
        return {
            DATA_LABEL: str(self.data_dir),
            "MINICLUSTER_HOST": self.host,
            "MINICLUSTER_PORT": str(self.port),
            "MINICLUSTER_DOMAIN": self.domain,
            "MINICLUSTER_NODES": str(self.nodes),
            "MINICLUSTER_HUB_PORT": str(self.ports.hub),
            "MINICLUSTER_PROXY_PORT": str(self.ports.proxy),
            "MINICLUSTER_SERVICE_PORT": str(self.ports.service),
            **({"MINICLUSTER_POLICIES": str(self.policies_dir)} if self.policies_dir else {}),
        }

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings of `./run`; without it, the defaults and ./data."""
        default, ports = cls(data_dir=Path("data")), Ports()
        return cls(
            data_dir=Path(env.get(DATA_LABEL, "data")).absolute(),
            host=env.get("MINICLUSTER_HOST", default.host),
            port=int(env.get("MINICLUSTER_PORT", default.port)),
            nodes=int(env.get("MINICLUSTER_NODES", default.nodes)),
            domain=env.get("MINICLUSTER_DOMAIN", default.domain),
            ports=Ports(
                hub=int(env.get("MINICLUSTER_HUB_PORT", ports.hub)),
                proxy=int(env.get("MINICLUSTER_PROXY_PORT", ports.proxy)),
                service=int(env.get("MINICLUSTER_SERVICE_PORT", ports.service)),
            ),
            policies_dir=Path(policies) if (policies := env.get("MINICLUSTER_POLICIES")) else None,
        )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
