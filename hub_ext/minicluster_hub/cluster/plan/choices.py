"""The administrator's choices at `up`, stored with the cluster, so that a later `up` uses them again."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minicluster_hub.cluster.plan import option_values as values
from minicluster_hub.cluster.plan import policy_container

TLS_SELF_MADE, TLS_OWN, TLS_NONE = "self-made", "own", "none"
NO_UPSTREAM = "none"
SERVICE_PREFIX = "/services/minicluster/"
SERVICE_LABEL = "minicluster--service"
"""JupyterHub's label for the job service below the domain (`JupyterHub.subdomain_hook`)."""


def _option(default: Any, flag: str, metavar: str | None = None, **more: Any) -> Any:
    """Return a field that an option of `up` sets. more: arguments for argparse."""
    more |= {"metavar": metavar} if metavar else {}
    default = {"default_factory": dict} if default == {} else {"default": default}
    return dataclasses.field(metadata={"flag": flag, **more}, **default)


@dataclass(frozen=True)
class Choices:
    """The options of `up`. They are stored as a Docker config, so nothing in them is secret.

    The help of an option describes its field.
    tls: a self-signed certificate, the lab's, or plain HTTP.
    has_db_url: whether a secret has the database's URL.
    tls_mark, db_mark: identify the present certificate and URL among those given over time.
    """

    tls: str = TLS_SELF_MADE
    tls_mark: str = ""
    has_db_url: bool = False
    db_mark: str = ""
    port: int = _option(443, "--port", type=values.port, help="port for browsers on the first machine (443)")
    names: tuple[str, ...] = _option(
        (), "--name", "HOST", action="append", help="name of the hub in browsers; may be repeated"
    )
    domain: str = _option(
        "",
        "--domain",
        "HOST",
        type=values.domain,
        help="the hub's domain; each user's server gets a subdomain, so that no user's page can act as "
        "another user (needs DNS and a certificate for HOST and *.HOST); none: all share one address",
    )
    hub_image: str = _option(
        "", "--hub-image", "REF", help="the platform's image (the one that runs this command)"
    )
    notebook_image: str = _option(
        "",
        "--notebook-image",
        "REF",
        help="the image of notebooks and jobs (the one of the same release)",
    )
    registry_image: str = _option(
        "docker.io/library/registry:3",
        "--registry-image",
        "REF",
        help="the registry's image (docker.io/library/registry:3)",
    )
    shared_homes: str = _option(
        "", "--shared-homes", "SERVER:/PATH[,OPTION...]", help="homes on NFS instead of each node's disk"
    )
    server_gpus: float = _option(
        0,
        "--server-gpus",
        "N",
        type=values.gpus,
        help="most GPUs of one notebook server (0: all are for jobs; 0.5: half of one, with --share-gpus)",
    )
    share_gpus: bool = _option(
        False,
        "--share-gpus",
        action=argparse.BooleanOptionalAction,
        help="divide GPUs into halves, for cells with --gpu-share 0.5 and for notebook servers; those who "
        "share a GPU share /dev/shm, and a fault of one can end the other",
    )
    server_mounts: tuple[str, ...] = _option(
        (),
        "--server-mount",
        "SOURCE[:ro]",
        action="append",
        help="allow a folder of the nodes, or a volume, that your --config has servers mount; {username}"
        " stands for one part of a path; may be repeated",
    )
    data_cache_bytes: int = _option(
        0,
        "--data-cache",
        "SIZE",
        type=values.size,
        help="most bytes of each node's cache of data sets, like 200g; 0: all but 5 %% of its disk, or 10g",
    )
    disk_reserve_bytes: int = _option(
        0,
        "--disk-reserve",
        "SIZE",
        type=values.size,
        help="free space on each node, like 20g: if less is left, the job or notebook server that fills the "
        "disk is ended; 0: 5 %% of the disk, at least 1g and at most 10g",
    )
    platform_memory_bytes: int = _option(
        2_000_000_000,
        "--platform-memory",
        "SIZE",
        type=values.memory,
        help="most memory of the hub and of the job service, each (2g); one that needs more is restarted",
    )
    policies: Mapping[str, str] = _option(
        {},
        "--policies",
        "DIR",
        type=policy_container.policies,
        help="folder of the lab's own scheduling policies, NAME.py each; they run in their own container",
    )
    dedicated_managers: bool = _option(
        False,
        "--dedicated-managers",
        action=argparse.BooleanOptionalAction,
        help="managers run only the cluster's own services, no jobs and no notebook servers",
    )
    tenants_reach: tuple[str, ...] = _option(
        (),
        "--tenants-reach",
        "ADDRESS:PORT",
        type=values.endpoint,
        action="append",
        help="a port of a node that users' containers may reach; may be repeated",
    )
    tenants_deny: tuple[str, ...] = _option(
        (),
        "--tenants-deny",
        "NETWORK",
        type=values.network,
        action="append",
        help="a network, like 10.0.0.0/8, that users' containers must not reach; may be repeated",
    )
    tenants_dns: tuple[str, ...] = _option(
        (),
        "--tenants-dns",
        "ADDRESS",
        type=values.address,
        action="append",
        help="a name server for users' containers, if nodes have systemd-resolved; may be repeated",
    )
    upstream: str = _option(
        "",
        "--upstream",
        "URL",
        help="the registry that the cache fetches from (the notebook image's); or none",
    )
    config: str = _option(
        "",
        "--config",
        "FILE",
        type=values.text_of,
        help="a jupyterhub_config.py of the lab's; - reads it from stdin",
    )
    shared_data: str = _option(
        "",
        "--shared-data",
        "PATH",
        help="a folder that all managers share, for the platform's data: then one of three managers may fail "
        "(needs --db-url-file)",
    )
    service_options: tuple[str, ...] = _option(
        (),
        "--service-option",
        "OPTION",
        type=values.service_option,
        action="append",
        help="a further option of the job service, like --service-option=--MiniclusterHub.keep_warm_s=600",
    )

    @classmethod
    def options(cls, *names: str) -> dict[str, dict[str, Any]]:
        """Return argparse's arguments for these fields, or for all, by flag."""
        found = {field.name: dict(field.metadata) for field in dataclasses.fields(cls) if field.metadata}
        chosen = {name: found[name] for name in names} if names else found
        return {option.pop("flag"): {"dest": name, **option} for name, option in chosen.items()}

    def with_given(self, given: Mapping[str, Any]) -> Choices:
        """Return these choices, updated with the given ones (None: not given)."""
        names = {field.name for field in dataclasses.fields(self)}
        changed = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
            if value is not None and name in names
        }
        return dataclasses.replace(self, **changed)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Choices:
        """Parse a document of this or another version; ignore unknown fields."""
        return cls().with_given(document)

    def url(self, address: str) -> str:
        """Return the URL for browsers, with the domain, the first name, or the manager's address."""
        return self._url_of(self.domain or next(iter(self.names), address))

    def login_environment(self) -> dict[str, str]:
        """Return the variables for logins of the job service: the hub's URL, and the URL to return to.

        Empty if the job service shares the hub's name.
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
        """The names that a certificate needs."""
        return (*((self.domain, f"*.{self.domain}") if self.domain else ()), *self.names)

    def _url_of(self, host: str) -> str:
        scheme, usual = ("http", 80) if self.tls == TLS_NONE else ("https", 443)
        host = f"[{host}]" if ":" in host else host
        return f"{scheme}://{host}" + ("" if self.port == usual else f":{self.port}")
