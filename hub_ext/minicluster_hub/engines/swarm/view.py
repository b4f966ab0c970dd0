"""What the Docker API says of tasks and nodes, as records: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from minicluster_hub.engines.swarm.names import NAME_LABEL, ROLE_LABEL, SLOTS_LABEL

GPU_KIND = "GPU"
_GIVEN_UP = ("shutdown", "remove")
_BEFORE_RUNNING = ("new", "allocated", "pending", "assigned", "accepted", "preparing", "ready", "starting")


@dataclass(frozen=True, slots=True)
class SwarmTask:
    """The task of a service that runs one.

    state: Docker's word (preparing: it pulls the image). desired: running, shutdown or remove.
    error: why it does not run, in Docker's words. addresses: on its overlay networks.
    """

    service_name: str
    labels: Mapping[str, str]
    task_id: str
    node_id: str
    state: str
    desired: str
    error: str
    exit_code: int | None
    container_id: str
    image: str
    addresses: tuple[str, ...]

    @property
    def starting(self) -> bool:
        """On its way up; one that the Swarm gave up (its node went down or was drained) never gets there."""
        return self.state in _BEFORE_RUNNING and self.desired not in _GIVEN_UP

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def alive(self) -> bool:
        """Starting is not dead."""
        return self.starting or self.running

    @property
    def abandoned(self) -> bool:
        """Never ran, and never will: its node went away, and Docker says no more."""
        return self.state in _BEFORE_RUNNING and self.desired in _GIVEN_UP


@dataclass(frozen=True, slots=True)
class SwarmNode:
    """name: the host's name, with a part of the id where two hosts share one.

    gpus: the ids that the daemon advertises as generic resources of kind GPU; a daemon that only
    tells a number gives "0", "1", ...
    """

    id: str
    name: str
    address: str
    up: bool
    manager: bool
    availability: str
    gpus: tuple[str, ...]
    labels: Mapping[str, str]
    engine_version: str
    memory_bytes: int
    cpus: float

    @property
    def usable(self) -> bool:
        """Takes new tasks: an admin may have paused or drained it."""
        return self.up and self.availability == "active"


def tasks_of(raw: Iterable[Mapping[str, Any]], role: str) -> dict[str, SwarmTask]:
    """Return the task of each service of that role: the one that lives, else the newest."""
    found: dict[str, SwarmTask] = {}
    mine = (one for one in raw if _labels(one).get(ROLE_LABEL) == role)
    for one in sorted(mine, key=lambda one: str(one.get("CreatedAt", ""))):
        task = _task(one)
        before = found.get(task.service_name)
        if before is None or task.alive or not before.alive:
            found[task.service_name] = task
    return found


def images_of(raw: Iterable[Mapping[str, Any]]) -> frozenset[tuple[str, str]]:
    """Return which images are on which nodes, as pairs of reference and node id: what ran was pulled."""
    return frozenset(
        (task.image, task.node_id) for task in map(_task, raw) if task.state in ("running", "complete")
    )


def relayed(raw: Iterable[Mapping[str, Any]]) -> frozenset[str] | None:
    """Return the ids of the nodes whose relay runs; None where there is no relay at all."""
    relays = [one for one in raw if _labels(one).get(ROLE_LABEL) == "relay"]
    running = (one for one in relays if (one.get("Status") or {}).get("State") == "running")
    return frozenset(str(one.get("NodeID", "")) for one in running) if relays else None


def _labels(raw: Mapping[str, Any]) -> Mapping[str, str]:
    """A task does not tell its service's name or labels; those of its container do (names.labels)."""
    return ((raw.get("Spec") or {}).get("ContainerSpec") or {}).get("Labels") or {}


def _task(raw: Mapping[str, Any]) -> SwarmTask:
    status = raw.get("Status") or {}
    container = status.get("ContainerStatus") or {}
    spec, labels = (raw.get("Spec") or {}).get("ContainerSpec") or {}, _labels(raw)
    state = str(status.get("State", "new"))
    return SwarmTask(
        service_name=str(labels.get(NAME_LABEL) or raw.get("ServiceID", "")),
        labels=labels,
        task_id=str(raw["ID"]),
        node_id=str(raw.get("NodeID", "")),
        state=state,
        desired=str(raw.get("DesiredState", "running")),
        error=str(status.get("Err", "")),
        exit_code=container.get("ExitCode") if state in ("complete", "failed", "shutdown") else None,
        container_id=str(container.get("ContainerID", "")),
        image=str(spec.get("Image", "")),
        addresses=tuple(
            address.partition("/")[0]
            for attached in raw.get("NetworksAttachments") or ()
            for address in attached.get("Addresses") or ()
        ),
    )


def nodes_of(raw: Iterable[Mapping[str, Any]]) -> tuple[SwarmNode, ...]:
    """Return the nodes by name."""
    known = list(raw)
    names = Counter(_hostname(one) for one in known)
    nodes = [_node(one, unique=names[_hostname(one)] == 1) for one in known]
    return tuple(sorted(nodes, key=lambda node: node.name))


def _hostname(raw: Mapping[str, Any]) -> str:
    return str((raw.get("Description") or {}).get("Hostname") or raw["ID"])


def _node(raw: Mapping[str, Any], *, unique: bool) -> SwarmNode:
    description, status, spec = raw.get("Description") or {}, raw.get("Status") or {}, raw.get("Spec") or {}
    resources = description.get("Resources") or {}
    manager = raw.get("ManagerStatus") or {}
    address = str(status.get("Addr", ""))
    if address in ("", "0.0.0.0", "127.0.0.1"):  # noqa: S104 - what a manager says of itself
        address = str(manager.get("Addr", "")).rpartition(":")[0]
    return SwarmNode(
        id=str(raw["ID"]),
        name=_hostname(raw) if unique else f"{_hostname(raw)}-{str(raw['ID'])[:6]}",
        address=address,
        up=status.get("State") == "ready",
        manager=spec.get("Role") == "manager",
        availability=str(spec.get("Availability", "active")),
        gpus=_gpus(resources.get("GenericResources") or ()),
        labels=spec.get("Labels") or {},
        engine_version=str((description.get("Engine") or {}).get("EngineVersion", "")),
        memory_bytes=int(resources.get("MemoryBytes", 0)),
        cpus=int(resources.get("NanoCPUs", 0)) / 1e9,
    )


def _gpus(resources: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    ids: list[str] = []
    for resource in resources:
        named, counted = resource.get("NamedResourceSpec"), resource.get("DiscreteResourceSpec")
        if named and named.get("Kind") == GPU_KIND:
            ids.append(str(named["Value"]))
        elif counted and counted.get("Kind") == GPU_KIND:
            ids += [str(number) for number in range(int(counted["Value"]))]
    return tuple(ids)


def slot_kinds(nodes: Iterable[SwarmNode]) -> dict[str, tuple[str, ...]]:
    """Return the slots of each node: its GPUs; where no node has any, one CPU slot.

    A node without GPUs in a cluster that has some takes no ranks, unless its label says how many.
    """
    known = list(nodes)
    any_gpu = any(node.gpus for node in known)
    return {node.name: ("gpu",) * len(node.gpus) or _cpu_slots(node, any_gpu) for node in known}


def _cpu_slots(node: SwarmNode, any_gpu: bool) -> tuple[str, ...]:
    value = node.labels.get(SLOTS_LABEL, "")
    count = int(value) if value.isdigit() else (0 if any_gpu else 1)
    return ("cpu",) * count
