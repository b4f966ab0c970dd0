"""Which services, secrets and networks hub and job service may make: pure.

Who takes over the hub or the job service can call Docker by this table alone. Two things would be root on a
node: a mount of what is not theirs (the disk, another service's volume, a secret of the platform), and
the node's own network with a program of their choice. The platform's program is one, too, once it finds
their files where Python looks for modules: in a home, for example.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

from minicluster_hub.cluster.docker_proxy.shapes import Document, Mount, Network, Secret, Service
from minicluster_hub.engines.swarm.names import CLUSTER, CLUSTER_LABEL, DATA_ROLE, DATA_VOLUME, ROLE_LABEL
from minicluster_hub.engines.swarm.spec import DATA_CACHE

HUB, SERVICE = "hub", "service"
HOST_NETWORK = "host"
USERNAME = "{username}"
_SHARED_HOME = f"{CLUSTER}-sharedhome-"
_PART = "[a-z0-9][a-z0-9-]*"


@dataclass(frozen=True, slots=True)
class Told:
    """What `up` knows of this cluster.

    image: of the platform's own containers on nodes. host_network: tasks may use their node's network.
    homes: the volume driver's options of shared homes. mounts: further sources that servers may mount.
    """

    image: str = ""
    host_network: bool = False
    homes: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Self:
        told = json.loads(text)
        return cls(**{**told, "mounts": tuple(told.get("mounts", ()))})


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume that a kind mounts. target: the only folder where; empty: any. only_read: not to write."""

    name: str
    target: str = ""
    only_read: bool = False


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of what is made. Patterns are of whole names; an empty one matches none.

    volumes: those that it mounts. command: the only one that it runs, in the platform's own image and without
    a tmpfs: it is on its node's network. environment: the only values that these variables have.
    """

    role: str
    name: str
    secrets: str = ""
    network: str = ""
    aliases: str = ""
    volumes: tuple[Volume, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


_GANG = f"{CLUSTER}-gang-[0-9]+"
_SERVER = f"{CLUSTER}-server-{_PART}"
KINDS: Mapping[str, tuple[Kind, ...]] = {
    HUB: (
        Kind(
            "server",
            _SERVER,
            secrets=rf"{CLUSTER}-server-[0-9a-f]+-[a-z.-]+",
            network=CLUSTER,
            aliases=f"{CLUSTER}-server-[0-9a-f]+",
            volumes=(Volume(f"{CLUSTER}-home-{_PART}"),),
        ),
    ),
    SERVICE: (
        Kind(
            "task",
            f"{CLUSTER}-task-[0-9]+",
            secrets=f"{CLUSTER}-task-[0-9]+",
            network=_GANG,
            volumes=(Volume(DATA_VOLUME, DATA_CACHE, only_read=True),),
        ),
        Kind("lighthouse", f"{CLUSTER}-lighthouse-[0-9]+", network=_GANG),
        Kind("gpus", f"{CLUSTER}-gpus-{_PART}", command=("sleep", "infinity")),
        Kind(
            DATA_ROLE,
            f"{CLUSTER}-{DATA_ROLE}-{_PART}",
            secrets=f"{CLUSTER}-{DATA_ROLE}-{_PART}",
            volumes=(Volume(DATA_VOLUME, DATA_CACHE),),
            command=("python", "-P", "-s", "-m", "minicluster.runtime.node.data_agent"),
            environment={"MINICLUSTER_DATA_CACHE": DATA_CACHE},
        ),
        Kind("gang", _GANG),
    ),
}
"""By who calls. A gang is a network; of the others come services and secrets."""


def problems(consumer: str, document: Document, told: Told) -> list[str]:
    """Return what a consumer may not have in a document, in words; none: it may be made."""
    kind = next((one for one in KINDS[consumer] if one.role == document.Labels.get(ROLE_LABEL)), None)
    if kind is None or document.Labels.get(CLUSTER_LABEL) != CLUSTER:
        return [f"Labels: the role {document.Labels.get(ROLE_LABEL, 'of nothing')} is not the {consumer}'s"]
    if isinstance(document, Service):
        return [*_of_name(kind.name, document.Name), *_of_service(kind, document, told)]
    if isinstance(document, Secret):
        return _of_name(kind.secrets, document.Name)
    assert isinstance(document, Network)  # noqa: S101
    return _of_name(kind.name if kind.role == "gang" else "", document.Name)


def _of_name(pattern: str, name: str) -> list[str]:
    return [] if pattern and re.fullmatch(pattern, name) else [f"Name: {name} is not of this role"]


def _of_service(kind: Kind, document: Service, told: Told) -> Iterator[str]:
    task, container = document.TaskTemplate, document.TaskTemplate.ContainerSpec
    if container.Labels != document.Labels:
        yield "Labels: the container's are not the service's"
    networks = [network.Target for network in task.Networks]
    if networks == [HOST_NETWORK]:
        yield from _of_host_network(kind, document, told)
    elif len(networks) != 1 or not re.fullmatch(kind.network or "-", networks[0]):
        yield f"Networks: {', '.join(networks) or 'none'} is not of this role"
    for alias in (alias for network in task.Networks for alias in network.Aliases):
        if not re.fullmatch(kind.aliases or "-", alias):
            yield f"Networks: the alias {alias} is not of this role"
    for secret in container.Secrets:
        if not kind.secrets or not re.fullmatch(kind.secrets, secret.SecretName):
            yield f"Secrets: {secret.SecretName} is not of this role"
    for mount in container.Mounts:
        if not _mounts(kind, mount, told):
            yield f"Mounts: {mount.Type} {mount.Source} at {mount.Target} is not allowed. {_remedy(mount)}"


def _of_host_network(kind: Kind, document: Service, told: Told) -> Iterator[str]:
    container = document.TaskTemplate.ContainerSpec
    if kind.command:
        if container.Image != told.image or tuple(container.Command) != kind.command or container.Args:
            yield "Command: only the platform's own program may be on its node's network"
        for name, _, value in (variable.partition("=") for variable in container.Env):
            if kind.environment.get(name, value) != value:
                yield f"Env: {name} has to be {kind.environment[name]}"
    elif not told.host_network or kind.role == "server":
        yield "Networks: host is not allowed"


def _mounts(kind: Kind, mount: Mount, told: Told) -> bool:
    if mount.Type == "tmpfs":
        return not mount.Source and not kind.command
    driver = mount.VolumeOptions.DriverConfig if mount.VolumeOptions else None
    if driver is not None:  # The driver `local` mounts whatever its options say.
        folder = mount.Source.removeprefix(_SHARED_HOME)
        wanted = {**told.homes, "device": told.homes.get("device", "").replace("%s", folder)}
        is_home = re.fullmatch(_SHARED_HOME + _PART, mount.Source)
        return bool(is_home and told.homes) and kind.role == "server" and driver.Options == wanted
    if kind.role == "server" and any(_is_told(mount, source) for source in told.mounts):
        return True
    if mount.Type == "bind":
        return False
    return any(_is_volume(mount, volume) for volume in kind.volumes)


def _is_volume(mount: Mount, volume: Volume) -> bool:
    if not re.fullmatch(volume.name, mount.Source) or volume.target not in ("", mount.Target):
        return False
    return mount.ReadOnly or not volume.only_read


def _is_told(mount: Mount, source: str) -> bool:
    """Tell whether a mount is of a source that `up` named; {username} stands for one part of a path."""
    source, _, mode = source.partition(":")
    pattern = re.escape(source).replace(re.escape(USERNAME), r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
    if mount.Type != ("bind" if source.startswith("/") else "volume"):
        return False
    return bool(re.fullmatch(pattern, mount.Source)) and (mount.ReadOnly or mode != "ro")


def _remedy(mount: Mount) -> str:
    if mount.VolumeOptions is not None and mount.VolumeOptions.DriverConfig is not None:
        return "Homes on a file server are told to `up` by --shared-homes."
    return "What servers may mount beside homes is told to `up` by --server-mount."
