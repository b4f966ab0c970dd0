"""Which services, secrets and networks hub and job service may create: pure.

An attacker in control of the hub or the job service can call Docker only within this table. Two things would
give them root on a node: a forbidden mount (the disk, another service's volume, a secret of the platform),
and a program of their choice in the node's own network. Even the platform's program would run their code if
their files were where Python finds modules, for example in a home.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from minicluster.wire.machines.gpu_share import MPS_LOGS, MPS_PIPES
from minicluster_hub.cluster.docker_proxy.documents import (
    Document,
    Driver,
    Mount,
    SecretDocument,
    ServiceDocument,
)
from minicluster_hub.engines.swarm.gpus.share import (
    COMMAND,
    PIPES,
    SHARED_ROLE,
    shared_mounts,
)
from minicluster_hub.engines.swarm.names import (
    CLUSTER,
    CLUSTER_LABEL,
    DATA_ROLE,
    DATA_VOLUME,
    ROLE_LABEL,
    SERVES_NETWORK,
)
from minicluster_hub.engines.swarm.spec import DATA_CACHE

HOST_NETWORK = "host"
USERNAME = "{username}"
_SHARED_HOME = f"{CLUSTER}-sharedhome-"
_PART = "[a-z0-9][a-z0-9-]*"
_NOTHING = "(?!)"
"""A pattern that no name matches."""


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """What `up` knows about this cluster.

    image: of the platform's containers on nodes. host_network: whether tasks may use their node's network.
    homes: volume driver options of shared homes. mounts: further sources that servers may mount.
    """

    image: str = ""
    host_network: bool = False
    homes: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Self:
        document = json.loads(text)
        return cls(**{**document, "mounts": tuple(document.get("mounts", ()))})


@dataclass(frozen=True, slots=True)
class AllowedVolume:
    """A volume that a role may mount. target: the only allowed folder; "": any folder.

    options: those of the driver `local`, exactly; None: it has no driver.
    """

    name: str
    target: str = ""
    read_only: bool = False
    options: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RoleRule:
    """The objects that may be created for a role. Patterns match whole names.

    secrets: those that may be created, and that a service may have. volumes: those that it may mount.
    command: the only allowed one, in the platform's image and without a tmpfs: it is on its node's network.
    environment: the only values that these variables may have.
    """

    role: str
    name: str
    secrets: str = _NOTHING
    network: str = _NOTHING
    aliases: str = _NOTHING
    volumes: tuple[AllowedVolume, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


_GANG = f"{CLUSTER}-gang-[0-9]+"
_SHARED_GPU = tuple(
    AllowedVolume(
        re.sub("[0-9]+$", "[0-9]+", mount["Source"]),
        mount["Target"],
        options=mount["VolumeOptions"]["DriverConfig"]["Options"],
    )
    for mount in shared_mounts(0)
)
"""What all have who share a GPU: volumes in memory."""
ROLES: Mapping[str, tuple[RoleRule, ...]] = {
    "hub": (
        RoleRule(
            "server",
            f"{CLUSTER}-server-{_PART}",
            secrets=rf"{CLUSTER}-server-[0-9a-f]+-[a-z.-]+",
            network=CLUSTER,
            aliases=f"{CLUSTER}-server-[0-9a-f]+",
            volumes=(AllowedVolume(f"{CLUSTER}-home-{_PART}"), *_SHARED_GPU),
        ),
    ),
    "service": (
        RoleRule(
            "task",
            f"{CLUSTER}-task-[0-9]+",
            secrets=f"{CLUSTER}-task-[0-9]+",
            network=f"{_GANG}|{SERVES_NETWORK}",
            volumes=(AllowedVolume(DATA_VOLUME, DATA_CACHE, read_only=True), *_SHARED_GPU),
        ),
        RoleRule("lighthouse", f"{CLUSTER}-lighthouse-[0-9]+", network=_GANG),
        RoleRule(
            SHARED_ROLE,
            f"{CLUSTER}-{SHARED_ROLE}-{_PART}",
            volumes=_SHARED_GPU,
            command=tuple(COMMAND),
            environment={MPS_PIPES: PIPES, MPS_LOGS: PIPES},
        ),
        RoleRule("gpus", f"{CLUSTER}-gpus-{_PART}", command=("sleep", "infinity")),
        RoleRule(
            DATA_ROLE,
            f"{CLUSTER}-{DATA_ROLE}-{_PART}",
            secrets=f"{CLUSTER}-{DATA_ROLE}-{_PART}",
            volumes=(AllowedVolume(DATA_VOLUME, DATA_CACHE),),
            command=("python", "-P", "-s", "-m", "minicluster.runtime.node.data_agent"),
            environment={"MINICLUSTER_DATA_CACHE": DATA_CACHE},
        ),
        RoleRule("gang", _GANG),
    ),
}
"""By consumer. For a gang, a network may be created; for other roles, services and secrets."""


def problems(consumer: str, document: Document, settings: RuleSettings) -> list[str]:
    """Return which parts of a document a consumer may not use, in words; none: the object may be created."""
    role = document.Labels.get(ROLE_LABEL, "of nothing")
    rule = next((one for one in ROLES[consumer] if one.role == role), None)
    if rule is None or document.Labels.get(CLUSTER_LABEL) != CLUSTER:
        return [f"Labels: the role {role} is not the {consumer}'s"]
    if isinstance(document, ServiceDocument):
        pattern, more = rule.name, _service_problems(rule, document, settings)
    elif isinstance(document, SecretDocument):
        pattern, more = rule.secrets, iter(())
    else:
        pattern, more = rule.name if role == "gang" else _NOTHING, iter(())
    wrong_name = (
        [] if re.fullmatch(pattern, document.Name) else [f"Name: {document.Name} is not of this role"]
    )
    return [*wrong_name, *more]


def _service_problems(rule: RoleRule, document: ServiceDocument, settings: RuleSettings) -> Iterator[str]:
    task, container = document.TaskTemplate, document.TaskTemplate.ContainerSpec
    if container.Labels != document.Labels:
        yield "Labels: the container's are not the service's"
    networks = [network.Target for network in task.Networks]
    if networks == [HOST_NETWORK]:
        yield from _host_network_problems(rule, document, settings)
    elif len(networks) != 1 or not re.fullmatch(rule.network, networks[0]):
        yield f"Networks: {', '.join(networks) or 'none'} is not of this role"
    for alias in (alias for network in task.Networks for alias in network.Aliases):
        if not re.fullmatch(rule.aliases, alias):
            yield f"Networks: the alias {alias} is not of this role"
    for secret in container.Secrets:
        if not re.fullmatch(rule.secrets, secret.SecretName):
            yield f"Secrets: {secret.SecretName} is not of this role"
    for mount in container.Mounts:
        if not _may_mount(rule, mount, settings):
            yield f"Mounts: {mount.Type} {mount.Source} at {mount.Target} is not allowed. {_remedy(mount)}"


def _host_network_problems(
    rule: RoleRule, document: ServiceDocument, settings: RuleSettings
) -> Iterator[str]:
    container = document.TaskTemplate.ContainerSpec
    if rule.command:
        if container.Image != settings.image or tuple(container.Command) != rule.command or container.Args:
            yield "Command: only the platform's own program may be on its node's network"
        for name, _, value in (variable.partition("=") for variable in container.Env):
            if rule.environment.get(name, value) != value:
                yield f"Env: {name} has to be {rule.environment[name]}"
    elif not settings.host_network or rule.role == "server":
        yield "Networks: host is not allowed"


def _may_mount(rule: RoleRule, mount: Mount, settings: RuleSettings) -> bool:
    is_server = rule.role == "server"
    if mount.Type == "tmpfs":
        return not mount.Source and not rule.command
    if (driver := _driver(mount)) is not None:  # The driver `local` mounts any path in its options.
        folder = mount.Source.removeprefix(_SHARED_HOME)
        options = {**settings.homes, "device": settings.homes.get("device", "").replace("%s", folder)}
        is_home = re.fullmatch(_SHARED_HOME + _PART, mount.Source)
        if any(driver.Options == one.options and _is_of_volume(mount, one) for one in rule.volumes):
            return True
        return bool(is_server and is_home and settings.homes) and driver.Options == options
    if is_server and any(_is_of_source(mount, source) for source in settings.mounts):
        return True
    plain = (volume for volume in rule.volumes if volume.options is None)
    return mount.Type == "volume" and any(_is_of_volume(mount, volume) for volume in plain)


def _driver(mount: Mount) -> Driver | None:
    return mount.VolumeOptions.DriverConfig if mount.VolumeOptions else None


def _is_of_volume(mount: Mount, volume: AllowedVolume) -> bool:
    if not re.fullmatch(volume.name, mount.Source) or volume.target not in ("", mount.Target):
        return False
    return mount.ReadOnly or not volume.read_only


def _is_of_source(mount: Mount, source: str) -> bool:
    """Whether a mount has a source that `up` named; {username} matches one part of a path."""
    source, _, mode = source.partition(":")
    pattern = re.escape(source).replace(re.escape(USERNAME), r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
    if mount.Type != ("bind" if source.startswith("/") else "volume"):
        return False
    return bool(re.fullmatch(pattern, mount.Source)) and (mount.ReadOnly or mode != "ro")


def _remedy(mount: Mount) -> str:
    if _driver(mount) is not None:
        return "Name the file server of homes by `up --shared-homes`."
    return "Name what servers may mount beside homes by `up --server-mount`."
