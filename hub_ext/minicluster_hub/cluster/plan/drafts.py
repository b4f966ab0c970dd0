"""The services of a cluster, each without what all have in common: pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from minicluster_hub.cluster.docker_proxy.rules import HUB, SERVICE
from minicluster_hub.cluster.docker_proxy.settings import (
    FOLDER,
    FOLDER_ENV,
    ROLE,
    SOCKET,
    SOCKET_ENV,
    TOLD_ENV,
    docker_host,
    docker_socket,
)
from minicluster_hub.cluster.eviction.rules import RESERVE_ENV, VOLUME_DIR, VOLUMES_ENV
from minicluster_hub.cluster.firewall.rules import (
    ALLOWED_ENV,
    DENIED_ENV,
    MANAGERS_ENV,
    NAME_SERVERS_ENV,
    SERVICES_ENV,
)
from minicluster_hub.cluster.plan.browser_addresses import login_environment, public_url
from minicluster_hub.cluster.plan.choices import SERVICE_PREFIX, TLS_NONE, Choices
from minicluster_hub.cluster.plan.record import Images
from minicluster_hub.cluster.policy_sandbox import container
from minicluster_hub.cluster.registry.relay import CACHE_ENV, NODE_ENV, PUBLISH_NODE_ENV, REGISTRY_ENV
from minicluster_hub.engines.swarm.shared_homes import volume_options

DATA_DIR = "/srv/minicluster"
REGISTRY_CONFIG, HUB_CONFIG = "/etc/minicluster/registry.yml", "/etc/minicluster/jupyterhub_config.py"
REGISTRY_PORT, CACHE_PORT, AGENTS_PORT = 5443, 5444, 8083
USERS_PORT = 8082
"""Of the job service, on the platform's network alone."""
FORMER_PORT, _FORMER_INSIDE = 8082, 8085
"""Where agents of releases before TLS report; published, and answered only while one of their tasks lives."""
USER, ROOT = "1000", "0"
_REGISTRY_SECRETS = ("registry_ca", "registry_publisher")
LARGE_BYTES, SMALL_BYTES = 1_000_000_000, 250_000_000
"""Memory of what runs once, and of what runs on each node: several times what was seen of them at work."""
_TLS_SECRETS = {"tls_ca_file": "service_ca", "tls_cert_file": "service_cert", "tls_key_file": "service_key"}
_HOST_NETWORK = re.compile(r"--SwarmEngine\.host_network=(True|true|1)")


@dataclass(frozen=True, slots=True)
class Kept:
    """A secret or config that lies in the Swarm."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the plan needs to know of the place. sealed, configs: by the names that services use.

    former_notebook: the image before the last upgrade: servers that run it still send jobs.
    managers: the addresses of the nodes that the platform may run on, by their ids.
    own_policies: whether the lab has policies of its own, as files or in packages of the hub image.
    """

    manager_id: str
    manager_address: str
    socket_path: str
    socket_gid: int
    images: Images
    former_notebook: str = ""
    upstream: str | None = None
    sealed: Mapping[str, Kept] = field(default_factory=dict)
    configs: Mapping[str, Kept] = field(default_factory=dict)
    managers: Mapping[str, str] = field(default_factory=dict)
    shared_data: str = ""
    own_policies: bool = False

    @property
    def manager_addresses(self) -> tuple[str, ...]:
        return tuple(self.managers.values()) or (self.manager_address,)

    def doors(self, port: int) -> str:
        """Return where a port of the platform may be found, with commas between."""
        return ",".join(f"{_host(address)}:{port}" for address in self.manager_addresses)


@dataclass(frozen=True, slots=True)
class Draft:
    """One service, before what all have in common. ports: published ones to those of the container.

    capabilities: those that it keeps; all others are dropped.
    everywhere: one task on each node, in the node's own network; otherwise one on the manager.
    each_manager: one task on each manager, in the platform's network. sockets: volumes of the manager, by
    role, where containers of that manager meet. policy_socket: it has that one's folder.
    sealed_off: no network that leads anywhere, nothing to write to. read_only: only the latter.
    limits: as Docker names them.
    """

    role: str
    image: str
    args: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    configs: Mapping[str, str] = field(default_factory=dict)
    data_dir: str = ""
    sockets: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[int, int] = field(default_factory=dict)
    user: str = USER
    socket: bool = False
    capabilities: tuple[str, ...] = ()
    everywhere: bool = False
    each_manager: bool = False
    once: bool = False
    sealed_off: bool = False
    read_only: bool = False
    policy_socket: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    grace_s: int = 5


def limits(memory_bytes: int, pids: int) -> dict[str, int]:
    """Return what a service may take of its machine, so that a defect of it does not take the machine."""
    return {"MemoryBytes": memory_bytes, "Pids": pids}


def registry(facts: Facts) -> Draft:
    return _registry(facts, "registry", REGISTRY_PORT, ("registry_publisher",))


def cache(facts: Facts) -> Draft:
    return _registry(facts, "cache", CACHE_PORT)


def _registry(facts: Facts, role: str, port: int, secrets: tuple[str, ...] = ()) -> Draft:
    return Draft(
        role=role,
        image=facts.images.registry,
        args=("serve", REGISTRY_CONFIG),
        secrets=("registry_cert", "registry_key", "registry_htpasswd", *secrets),
        configs={f"{role}_config": REGISTRY_CONFIG},
        environment={"OTEL_TRACES_EXPORTER": "none"},
        data_dir="/var/lib/registry",
        ports={port: 5000},
        user=ROOT,  # its image's folder is root's
        limits=limits(LARGE_BYTES, 1024),
    )


def firewall(choices: Choices, facts: Facts) -> Draft:
    """On each node: what users' containers reach of the machines' network, and what not."""
    ports = (choices.port, AGENTS_PORT, FORMER_PORT)
    doors = [f"{_host(address)}:{port}" for address in facts.manager_addresses for port in ports]
    return Draft(
        role="firewall",
        image=facts.images.hub,
        args=("run", "firewall"),
        environment={
            ALLOWED_ENV: ",".join([*doors, *choices.tenants_reach]),
            DENIED_ENV: ",".join(choices.tenants_deny),
            MANAGERS_ENV: ",".join(facts.manager_addresses),
            NAME_SERVERS_ENV: ",".join(choices.tenants_dns),
            SERVICES_ENV: ",".join(map(_task_url, facts.manager_addresses)),
        },
        secrets=("service_ca",),
        user=ROOT,
        capabilities=("CAP_NET_ADMIN",),
        everywhere=True,
        limits=limits(SMALL_BYTES, 64),
    )


def images(facts: Facts) -> Draft:
    """Fetch the notebook image on each node, also on one that joins later, before anybody clicks."""
    return Draft("images", facts.images.notebook, command=("true",), everywhere=True, once=True)


def service(choices: Choices, facts: Facts) -> Draft:
    return Draft(
        role="service",
        image=facts.images.hub,
        args=("run", "service", *_service_options(choices, facts)),
        environment={
            "JUPYTERHUB_SERVICE_NAME": "minicluster",
            "JUPYTERHUB_SERVICE_PREFIX": SERVICE_PREFIX,
            "JUPYTERHUB_SERVICE_URL": f"http://service:{USERS_PORT}",
            "JUPYTERHUB_CLIENT_ID": "service-minicluster",
            "JUPYTERHUB_API_URL": "http://hub:8081/hub/api",
            "JUPYTERHUB_BASE_URL": "/",
            **login_environment(choices),
            **docker_host("service"),
            **(_managers(facts) if facts.shared_data else {}),
        },
        secrets=(
            "service_token",
            "keeper_token",
            *_TLS_SECRETS.values(),
            *_REGISTRY_SECRETS,
            *(("db_url",) if choices.has_db_url else ()),
        ),
        data_dir=DATA_DIR,
        ports={AGENTS_PORT: AGENTS_PORT, FORMER_PORT: _FORMER_INSIDE},
        configs=container.files(choices.policies),
        sockets=docker_socket("service"),
        policy_socket=facts.own_policies,
        each_manager=bool(facts.shared_data),
        limits=limits(choices.platform_memory_bytes, 2048),
    )


def _service_options(choices: Choices, facts: Facts) -> list[str]:
    return [
        "--engine=swarm",
        f"--data-dir={DATA_DIR}",
        f"--SwarmEngine.image={facts.images.notebook}",
        *([f"--SwarmEngine.images={facts.former_notebook}"] if facts.former_notebook else []),
        f"--MiniclusterHub.server_gpus={choices.server_gpus}",
        *(["--SwarmEngine.dedicated_managers=True"] if choices.dedicated_managers else []),
        f"--SwarmEngine.data_cache_bytes={choices.data_cache_bytes}",
        f"--SwarmEngine.watch_gpus={choices.server_gpus > 0}",
        *_agents_options(),
        *_registry_options(facts),
        *([] if facts.shared_data else [f"--MiniclusterHub.task_url={_task_url(facts.manager_address)}"]),
        *container.service_options(needed=facts.own_policies),
        *choices.service_options,
    ]


def hub(choices: Choices, facts: Facts) -> Draft:
    url = public_url(choices, facts.manager_address, anywhere=bool(facts.shared_data))
    return Draft(
        role="hub",
        image=facts.images.hub,
        args=("run", "hub"),
        environment={
            "MINICLUSTER_ENGINE": "swarm",
            "MINICLUSTER_DATA": DATA_DIR,
            "MINICLUSTER_PUBLIC_URL": url,
            "MINICLUSTER_DOMAIN": choices.domain,
            "MINICLUSTER_IMAGE": facts.images.notebook,
            "MINICLUSTER_SERVER_GPUS": str(choices.server_gpus),
            "MINICLUSTER_SHARED_HOMES": choices.shared_homes,
            **docker_host("hub"),
        },
        secrets=("proxy_token", "service_token", "spawner_token"),
        configs={"hub_config": HUB_CONFIG} if choices.config else {},
        data_dir=DATA_DIR,
        sockets=docker_socket("hub"),
        limits=limits(choices.platform_memory_bytes, 2048),
        grace_s=10,
    )


def proxy(choices: Choices, facts: Facts) -> Draft:
    return Draft(
        role="proxy",
        image=facts.images.hub,
        args=("run", "proxy", *(("--host-routing",) if choices.domain else ())),
        secrets=("proxy_token", *(() if choices.tls == TLS_NONE else ("tls_cert", "tls_key"))),
        ports={choices.port: 8000},
        limits=limits(LARGE_BYTES, 256),
    )


def _agents_options() -> list[str]:
    """Return where the job service listens for agents, and by what they know it."""
    files = {name: f"/run/secrets/{secret}" for name, secret in _TLS_SECRETS.items()}
    return [
        f"--MiniclusterHub.agents_bind_url=https://0.0.0.0:{AGENTS_PORT}",
        f"--MiniclusterHub.former_bind_url=http://0.0.0.0:{_FORMER_INSIDE}",
        *(f"--MiniclusterHub.{name}={path}" for name, path in files.items()),
        f"--SwarmEngine.service_ca_file={files['tls_ca_file']}",
    ]


def _registry_options(facts: Facts) -> list[str]:
    """Return what leads the job service to the registry that takes what users publish."""
    ca_file, login_file = (f"/run/secrets/{name}" for name in _REGISTRY_SECRETS)
    cache = ["--RegistrySettings.cache_url=https://cache:5000"] if facts.upstream else []
    return [
        "--RegistrySettings.url=https://registry:5000",
        f"--RegistrySettings.ca_file={ca_file}",
        f"--RegistrySettings.login_file={login_file}",
        *cache,
    ]


def _task_url(address: str) -> str:
    return f"https://{_host(address)}:{AGENTS_PORT}{SERVICE_PREFIX}"


def _managers(facts: Facts) -> dict[str, str]:
    """Return what tells a job service which of the managers it is on."""
    urls = (f"{node_id}={_task_url(address)}" for node_id, address in facts.managers.items())
    return {NODE_ENV: "{{.Node.ID}}", SERVICES_ENV: ",".join(urls)}


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


# The Docker proxy as a service of the platform: pure.


def docker_proxy(choices: Choices, facts: Facts) -> Draft:
    """On each manager that hub or job service may run on."""
    homes = choices.shared_homes
    told = {
        "image": facts.images.notebook,
        "host_network": any(map(_HOST_NETWORK.fullmatch, choices.service_options)),
        "homes": {"type": "nfs", **volume_options(homes)} if homes else {},
        "mounts": choices.server_mounts,
    }
    return Draft(
        role=ROLE,
        image=facts.images.hub,
        args=("run", ROLE),
        environment={SOCKET_ENV: SOCKET, FOLDER_ENV: FOLDER, TOLD_ENV: json.dumps(told)},
        sockets=docker_socket(HUB) | docker_socket(SERVICE),
        socket=True,
        each_manager=bool(facts.shared_data),
        sealed_off=True,
        limits=limits(LARGE_BYTES, 64),
    )


# The service that ends whoever fills a node's disk.


def eviction(choices: Choices, facts: Facts) -> Draft:
    """Return one for each node. It is root without rights: the socket's group has another number on each."""
    return Draft(
        role="eviction",
        image=facts.images.hub,
        args=("run", "eviction"),
        environment={
            RESERVE_ENV: str(choices.disk_reserve_bytes),
            VOLUMES_ENV: "0" if choices.shared_homes else "1",
        },
        data_dir=VOLUME_DIR,
        user=ROOT,
        socket=True,
        everywhere=True,
        read_only=True,
        limits=limits(SMALL_BYTES, 64),
    )


# The container of a lab's own policies as a service of the platform: pure.


def policy(choices: Choices, facts: Facts) -> Draft:
    """What runs the lab's own policies, beside each job service: it has nothing but their files."""
    return Draft(
        role=container.ROLE,
        image=facts.images.hub,
        args=("run", "policy"),
        configs=container.files(choices.policies),
        user=container.USER,
        sealed_off=True,
        policy_socket=True,
        limits=container.LIMITS,
        each_manager=bool(facts.shared_data),
    )


# The relay as a service of the platform: pure.


def relay(facts: Facts) -> Draft:
    """Each node's doors to the registry; a hub image that was never published is on the manager only."""
    environment = {
        REGISTRY_ENV: facts.doors(REGISTRY_PORT),
        PUBLISH_NODE_ENV: ",".join(facts.managers or (facts.manager_id,)),
        NODE_ENV: "{{.Node.ID}}",
    }
    if facts.upstream:
        environment[CACHE_ENV] = facts.doors(CACHE_PORT)
    return Draft(
        role="relay",
        image=facts.images.hub,
        args=("run", "relay"),
        environment=environment,
        secrets=("registry_ca", "registry_reader"),
        everywhere=True,
        limits=limits(SMALL_BYTES, 64),
    )
