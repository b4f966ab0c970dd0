"""What an administrator chose at `up`: kept with the cluster, so that a later plain `up` uses it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TLS_SELF_MADE, TLS_OWN, TLS_NONE = "self-made", "own", "none"
NO_UPSTREAM = "none"
SERVICE_PREFIX = "/services/minicluster/"
SERVICE_LABEL = "minicluster--service"
"""What JupyterHub calls the job service below the domain (`JupyterHub.subdomain_hook`)."""


@dataclass(frozen=True)
class Choices:
    """One field per option of `up`. Nothing in it is secret: it is kept as a Docker config.

    domain: the hub's name, below which each user's server has a name of its own; "": all share one address.
    tls: a certificate of our own making, the lab's, or plain HTTP.
    upstream: the registry that the cache fetches from; "": the notebook image's; "none": no cache.
    server_gpus: the most GPUs of one notebook server.
    server_mounts: folders and volumes that notebook servers may mount beside their homes.
    shared_homes: SERVER:/PATH[,OPTION...] of homes on NFS.
    config: text of jupyterhub_config.py, "" for the built-in one.
    has_db_url: a secret holds the database's URL.
    shared_data: a folder that all managers have at the same path; the platform then runs on any of them.
    data_cache_bytes: the most that a node's cache of data sets holds; 0: as much as its disk has.
    dedicated_managers: managers run no jobs and no notebook servers.
    platform_memory_bytes: the most memory of the hub, and of the job service, each.
    disk_reserve_bytes: what jobs and servers leave free of each node's disk; 0: a share of it.
    tenants_reach: ADDRESS:PORT on the machines' network that users' containers may reach.
    tenants_deny: networks that they may not. tenants_dns: name servers that they ask; empty: each node's.
    policies: the texts of the lab's own scheduling policies, by their names.
    tls_mark, db_mark: which of the certificates and URLs that were given over time is the present one.
    """

    port: int = 443
    names: tuple[str, ...] = ()
    domain: str = ""
    tls: str = TLS_SELF_MADE
    tls_mark: str = ""
    hub_image: str = ""
    notebook_image: str = ""
    registry_image: str = "docker.io/library/registry:3"
    upstream: str = ""
    shared_homes: str = ""
    server_gpus: int = 0
    config: str = ""
    has_db_url: bool = False
    db_mark: str = ""
    shared_data: str = ""
    data_cache_bytes: int = 0
    dedicated_managers: bool = False
    platform_memory_bytes: int = 2_000_000_000
    disk_reserve_bytes: int = 0
    tenants_reach: tuple[str, ...] = ()
    tenants_deny: tuple[str, ...] = ()
    tenants_dns: tuple[str, ...] = ()
    server_mounts: tuple[str, ...] = ()
    service_options: tuple[str, ...] = ()
    policies: Mapping[str, str] = field(default_factory=dict)

    def with_given(self, given: Mapping[str, Any]) -> Choices:
        """Return these choices with what was given now (None: not given) in their place."""
        names = {field.name for field in dataclasses.fields(self)}
        changed = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
            if value is not None and name in names
        }
        return dataclasses.replace(self, **changed)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Choices:
        """Read a document of this or another version; unknown fields are left out."""
        return cls().with_given(document)

    def url(self, address: str) -> str:
        """Return what a browser types: the domain, the first name, or the manager's address."""
        return self._url_of(self.domain or next(iter(self.names), address))

    def login_environment(self) -> dict[str, str]:
        """Return where the job service sends browsers for a login, and the address to which they come back.

        Empty if it shares the hub's name.
        """
        if not self.domain:
            return {}
        service_url = self._url_of(f"{SERVICE_LABEL}.{self.domain}")
        return {
            "JUPYTERHUB_HOST": self.url(""),
            "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{service_url}{SERVICE_PREFIX}oauth_callback",
            "JUPYTERHUB_COOKIE_HOST_PREFIX_ENABLED": str(int(self.tls != TLS_NONE)),
        }

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names that a certificate has to hold."""
        return (*((self.domain, f"*.{self.domain}") if self.domain else ()), *self.names)

    def _url_of(self, host: str) -> str:
        scheme, usual = ("http", 80) if self.tls == TLS_NONE else ("https", 443)
        host = f"[{host}]" if ":" in host else host
        return f"{scheme}://{host}" + ("" if self.port == usual else f":{self.port}")
