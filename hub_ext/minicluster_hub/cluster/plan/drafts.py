"""The services of a cluster, without the settings that all have in common; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from minicluster_hub.cluster.docker_proxy import settings as docker_proxy_settings
from minicluster_hub.cluster.docker_proxy.settings import docker_host, docker_socket
from minicluster_hub.cluster.eviction.rules import RESERVE_ENV, VOLUME_DIR, VOLUMES_ENV
from minicluster_hub.cluster.firewall import rules as firewall_rules
from minicluster_hub.cluster.plan import policy_container
from minicluster_hub.cluster.plan.choices import SERVICE_PREFIX, TLS_NONE, Choices
from minicluster_hub.cluster.plan.record import PlatformImages
from minicluster_hub.cluster.registry.relay import CACHE_ENV, NODE_ENV, PUBLISH_NODE_ENV, REGISTRY_ENV
from minicluster_hub.engines.swarm.names import CLUSTER
from minicluster_hub.engines.swarm.shared_homes import volume_options

DATA_DIR = "/srv/minicluster"
REGISTRY_CONFIG, HUB_CONFIG = "/etc/minicluster/registry.yml", "/etc/minicluster/jupyterhub_config.py"
REGISTRY_PORT, CACHE_PORT, AGENTS_PORT = 5443, 5444, 8083
USERS_PORT = 8082
"""Of the job service, only on the platform's network."""
FORMER_PORT, _FORMER_INSIDE = 8082, 8085
"""For agents of releases before TLS: published, and served only while one of their tasks lives."""
USER, ROOT = "1000", "0"
_REGISTRY_SECRETS = ("registry_ca", "registry_publisher")
_TLS_SECRETS = {"tls_ca_file": "service_ca", "tls_cert_file": "service_cert", "tls_key_file": "service_key"}
LARGE_BYTES, SMALL_BYTES = 1_000_000_000, 250_000_000
"""Memory limits of a service that runs once, and of one on each node: several times their use."""
_HOST_NETWORK = re.compile(r"--SwarmEngine\.host_network=(True|true|1)")


def service_name(role: str) -> str:
    return f"{CLUSTER}_{role}"


def host_of(address: str) -> str:
    """Return an address in the form for URLs."""
    return f"[{address}]" if ":" in address else address


@dataclass(frozen=True, slots=True)
class SwarmObject:
    """A secret or config in the Swarm."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the machines, for the plan. secrets, configs: by the names that services use.

    former_notebook: the notebook image before the last upgrade; running servers still submit jobs with it.
    managers: the addresses of the nodes that the platform may run on, by node id.
    own_policies: whether the lab has custom policies, as files or in packages of the hub image.
    """

    manager_id: str
    manager_address: str
    socket_path: str
    socket_gid: int
    images: PlatformImages
    former_notebook: str = ""
    upstream: str | None = None
    secrets: Mapping[str, SwarmObject] = field(default_factory=dict)
    configs: Mapping[str, SwarmObject] = field(default_factory=dict)
    managers: Mapping[str, str] = field(default_factory=dict)
    shared_data: str = ""
    own_policies: bool = False

    @property
    def manager_addresses(self) -> tuple[str, ...]:
        return tuple(self.managers.values()) or (self.manager_address,)

    def endpoints(self, *ports: int) -> str:
        """Return the addresses of these ports on all managers, separated by commas."""
        return ",".join(f"{host_of(address)}:{port}" for address in self.manager_addresses for port in ports)


@dataclass(frozen=True, slots=True)
class ServiceDraft:
    """One service, without the settings that all have in common.

    ports: container ports by published port. user: user and group.
    capabilities: all that it has; others are dropped.
    everywhere: one task on each node, in the node's own network; otherwise one on the manager.
    each_manager: one task on each manager, in the platform's network.
    once: its tasks end by themselves; only failed ones are repeated.
    docker_socket: whether the engine's socket is mounted.
    sockets: volumes with sockets between containers of one manager: mount points by role.
    policy_socket: whether the folder of the policy container's socket is mounted.
    reaches_replicas: it is in the network of the replicas of served models, too.
    sealed_off: no network and a read-only disk. read_only: only a read-only disk.
    limits: under Docker's names.
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
    docker_socket: bool = False
    capabilities: tuple[str, ...] = ()
    everywhere: bool = False
    each_manager: bool = False
    once: bool = False
    sealed_off: bool = False
    read_only: bool = False
    policy_socket: bool = False
    reaches_replicas: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    grace_s: int = 5


def limits(memory_bytes: int, pids: int) -> dict[str, int]:
    """Return the limits of a service, so that a defect does not bring down its machine."""
    return {"MemoryBytes": memory_bytes, "Pids": pids}


def registry(facts: Facts) -> ServiceDraft:
    return _registry(facts, "registry", REGISTRY_PORT, ("registry_publisher",))


def cache(facts: Facts) -> ServiceDraft:
    return _registry(facts, "cache", CACHE_PORT)


def _registry(facts: Facts, role: str, port: int, secrets: tuple[str, ...] = ()) -> ServiceDraft:
    return ServiceDraft(
        role=role,
        image=facts.images.registry,
        args=("serve", REGISTRY_CONFIG),
        secrets=("registry_cert", "registry_key", "registry_htpasswd", *secrets),
        configs={f"{role}_config": REGISTRY_CONFIG},
        environment={"OTEL_TRACES_EXPORTER": "none"},
        data_dir="/var/lib/registry",
        ports={port: 5000},
        user=ROOT,  # root owns the folder in its image
        limits=limits(LARGE_BYTES, 1024),
    )


def relay(facts: Facts) -> ServiceDraft:
    """On each node: leads to the registry. A hub image that was never published is on the manager only."""
    cache = {CACHE_ENV: facts.endpoints(CACHE_PORT)} if facts.upstream else {}
    return ServiceDraft(
        role="relay",
        image=facts.images.hub,
        args=("run", "relay"),
        environment={
            REGISTRY_ENV: facts.endpoints(REGISTRY_PORT),
            PUBLISH_NODE_ENV: ",".join(facts.managers or (facts.manager_id,)),
            NODE_ENV: "{{.Node.ID}}",
            **cache,
        },
        secrets=("registry_ca", "registry_reader"),
        everywhere=True,
        limits=limits(SMALL_BYTES, 64),
    )


def firewall(choices: Choices, facts: Facts) -> ServiceDraft:
    """On each node: limits what users' containers reach on the machines' network."""
    platform = facts.endpoints(choices.port, AGENTS_PORT, FORMER_PORT)
    return ServiceDraft(
        role="firewall",
        image=facts.images.hub,
        args=("run", "firewall"),
        environment={
            firewall_rules.ALLOWED_ENV: ",".join([platform, *choices.tenants_reach]),
            firewall_rules.DENIED_ENV: ",".join(choices.tenants_deny),
            firewall_rules.MANAGERS_ENV: ",".join(facts.manager_addresses),
            firewall_rules.NAME_SERVERS_ENV: ",".join(choices.tenants_dns),
            firewall_rules.SERVICES_ENV: ",".join(map(_task_url, facts.manager_addresses)),
        },
        secrets=("service_ca",),
        user=ROOT,
        capabilities=("CAP_NET_ADMIN",),
        everywhere=True,
        limits=limits(SMALL_BYTES, 64),
    )


def eviction(choices: Choices, facts: Facts) -> ServiceDraft:
    """On each node: ends the container that fills the disk.

    It is root without capabilities, since the group id of the engine's socket differs among nodes.
    """
    return ServiceDraft(
        role="eviction",
        image=facts.images.hub,
        args=("run", "eviction"),
        environment={
            RESERVE_ENV: str(choices.disk_reserve_bytes),
            VOLUMES_ENV: "0" if choices.shared_homes else "1",
        },
        data_dir=VOLUME_DIR,
        user=ROOT,
        docker_socket=True,
        everywhere=True,
        read_only=True,
        limits=limits(SMALL_BYTES, 64),
    )


def docker_proxy(choices: Choices, facts: Facts) -> ServiceDraft:
    """On each manager that hub or job service may run on: limits their Docker calls."""
    homes = choices.shared_homes
    rules = {
        "image": facts.images.notebook,
        "host_network": any(map(_HOST_NETWORK.fullmatch, choices.service_options)),
        "homes": {"type": "nfs", **volume_options(homes)} if homes else {},
        "mounts": choices.server_mounts,
    }
    return ServiceDraft(
        role=docker_proxy_settings.ROLE,
        image=facts.images.hub,
        args=("run", docker_proxy_settings.ROLE),
        environment={
            docker_proxy_settings.SOCKET_ENV: docker_proxy_settings.SOCKET,
            docker_proxy_settings.FOLDER_ENV: docker_proxy_settings.FOLDER,
            docker_proxy_settings.RULES_ENV: json.dumps(rules),
        },
        sockets=docker_socket("hub") | docker_socket("service"),
        docker_socket=True,
        each_manager=bool(facts.shared_data),
        sealed_off=True,
        limits=limits(LARGE_BYTES, 64),
    )


def images(facts: Facts) -> ServiceDraft:
    """On each node, even one that joins later: fetches the notebook image before anybody needs it."""
    image = facts.images.notebook
    return ServiceDraft("images", image, command=("true",), everywhere=True, once=True)


def policy(choices: Choices, facts: Facts) -> ServiceDraft:
    """Beside each job service: runs the lab's custom policies, and has only their files."""
    return ServiceDraft(
        role=policy_container.ROLE,
        image=facts.images.hub,
        args=("run", "policy"),
        configs=policy_container.files(choices.policies),
        user=policy_container.USER,
        sealed_off=True,
        policy_socket=True,
        limits=policy_container.LIMITS,
        each_manager=bool(facts.shared_data),
    )


def service(choices: Choices, facts: Facts) -> ServiceDraft:
    """The job service."""
    return ServiceDraft(
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
            **choices.login_environment(),
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
        configs=policy_container.files(choices.policies),
        sockets=docker_socket("service"),
        policy_socket=facts.own_policies,
        reaches_replicas=True,
        each_manager=bool(facts.shared_data),
        limits=limits(choices.platform_memory_bytes, 2048),
    )


def _service_options(choices: Choices, facts: Facts) -> list[str]:
    tls_files = {name: f"/run/secrets/{secret}" for name, secret in _TLS_SECRETS.items()}
    ca_file, login_file = (f"/run/secrets/{name}" for name in _REGISTRY_SECRETS)
    return [
        "--engine=swarm",
        f"--data-dir={DATA_DIR}",
        f"--SwarmEngine.image={facts.images.notebook}",
        *([f"--SwarmEngine.images={facts.former_notebook}"] if facts.former_notebook else []),
        f"--MiniclusterHub.server_gpus={choices.server_gpus:g}",
        *(["--SwarmEngine.share_gpus=True"] if choices.share_gpus else []),
        *(["--SwarmEngine.dedicated_managers=True"] if choices.dedicated_managers else []),
        f"--SwarmEngine.data_cache_bytes={choices.data_cache_bytes}",
        f"--SwarmEngine.watch_gpus={choices.server_gpus > 0}",
        f"--MiniclusterHub.agents_bind_url=https://0.0.0.0:{AGENTS_PORT}",
        f"--MiniclusterHub.former_bind_url=http://0.0.0.0:{_FORMER_INSIDE}",
        *(f"--MiniclusterHub.{name}={path}" for name, path in tls_files.items()),
        f"--SwarmEngine.service_ca_file={tls_files['tls_ca_file']}",
        "--RegistrySettings.url=https://registry:5000",
        f"--RegistrySettings.ca_file={ca_file}",
        f"--RegistrySettings.login_file={login_file}",
        *(["--RegistrySettings.cache_url=https://cache:5000"] if facts.upstream else []),
        *([] if facts.shared_data else [f"--MiniclusterHub.task_url={_task_url(facts.manager_address)}"]),
        *policy_container.service_options(needed=facts.own_policies),
        *choices.service_options,
    ]


def _task_url(address: str) -> str:
    return f"https://{host_of(address)}:{AGENTS_PORT}{SERVICE_PREFIX}"


def _managers(facts: Facts) -> dict[str, str]:
    """Return the variables with which a job service finds out its manager."""
    urls = (f"{node_id}={_task_url(address)}" for node_id, address in facts.managers.items())
    return {NODE_ENV: "{{.Node.ID}}", firewall_rules.SERVICES_ENV: ",".join(urls)}


def hub(choices: Choices, facts: Facts) -> ServiceDraft:
    # Empty: the hub uses the browser's address of it, since the proxy may be on any manager.
    any_address = facts.shared_data and not choices.served_names
    return ServiceDraft(
        role="hub",
        image=facts.images.hub,
        args=("run", "hub"),
        environment={
            "MINICLUSTER_ENGINE": "swarm",
            "MINICLUSTER_DATA": DATA_DIR,
            "MINICLUSTER_PUBLIC_URL": "" if any_address else choices.url(facts.manager_address),
            "MINICLUSTER_DOMAIN": choices.domain,
            "MINICLUSTER_IMAGE": facts.images.notebook,
            "MINICLUSTER_SERVER_GPUS": f"{choices.server_gpus:g}",
            **({"MINICLUSTER_SHARE_GPUS": "1"} if choices.share_gpus else {}),
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


def proxy(choices: Choices, facts: Facts) -> ServiceDraft:
    return ServiceDraft(
        role="proxy",
        image=facts.images.hub,
        args=("run", "proxy", *(("--host-routing",) if choices.domain else ())),
        secrets=("proxy_token", *(() if choices.tls == TLS_NONE else ("tls_cert", "tls_key"))),
        ports={choices.port: 8000},
        limits=limits(LARGE_BYTES, 256),
    )
