"""Three Docker hosts, a switch and an outside registry: created together, and removed without remains."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from .cgroups import ControlGroup
from .disk import Disk
from .engine import Engine, for_kubelet
from .images import drop_others, ids_of, pull, push
from .machine import Machine
from .node import Node
from .packages import fetch, locked
from .paths import LAB_NETWORK, cache_folder, run_folder
from .processes import LabError, own_line, process_of, remove_tree
from .registry import OutsideRegistry
from .seeds import Seed
from .switch import Switch

_NAME = re.compile(r"[a-z][a-z0-9]{0,6}")
_GROUPS = "minilab"


class LabBusy(LabError):
    """Another process has a lab with this name."""


@dataclass(frozen=True)
class LabPlan:
    """A lab's configuration, stored in the lab's folder for other processes."""

    name: str
    subnet: str
    gpus: tuple[int, ...] = (0, 0, 0)
    disk_mb: tuple[int | None, ...] = (None, None, None)
    insecure_registry: bool = True
    pod_networks: tuple[str, ...] = ()


class Lab:
    """Docker hosts on fresh engines. As a context manager, the lab exists only inside of the `with` block."""

    def __init__(
        self,
        name: str,
        subnet: str = "10.78.0",
        *,
        gpus: int | Sequence[int] = 0,
        disk_mb: int | Sequence[int | None] | None = None,
        insecure_registry: bool = True,
        pod_networks: Sequence[str] = (),
        standing: bool = False,
        images: Sequence[str] = (),
        images_on: int | None = None,
    ) -> None:
        """`gpus`: fake GPUs on each of three nodes, or a number for each node, which sets their count, too;
        `disk_mb`: size of all disks, or of each; None: no limit; `standing`: the lab outlives its process;
        `images`: images of the build engine that all nodes, or the first `images_on` nodes, have from the
        start (nodes with limited disks get them by `load`); `pod_networks`: the network of each node's pods,
        where kubelets start them and not a Swarm."""
        if not _NAME.fullmatch(name):
            raise LabError(
                f"{name!r} is no name for a lab: up to 7 small letters and digits (devices are named so)"
            )
        counts = (gpus,) * 3 if isinstance(gpus, int) else tuple(gpus)
        sizes = (disk_mb,) * len(counts) if disk_mb is None or isinstance(disk_mb, int) else tuple(disk_mb)
        self.plan = LabPlan(name, subnet, counts, sizes, insecure_registry, tuple(pod_networks))
        self.folder = run_folder() / name
        self.data = cache_folder() / "labs" / name
        self.switch = Switch(name, subnet, self.folder)
        self.registry = OutsideRegistry(self.folder, self.switch.root_address)
        self.nodes = tuple(self._node(number, count) for number, count in enumerate(counts, 1))
        self.guest = self._node(len(counts) + 1, 0)
        """A machine in the same network outside of the cluster; off until `switch_on_guest`."""
        self._standing = standing
        self._images = tuple(images)
        self._planted = [node for node in self.nodes[:images_on] if node.disk.is_plain]
        self._started = False

    @classmethod
    def attach(cls, name: str) -> Lab:
        """Return the lab of this name that another process made."""
        plan = run_folder() / name / "plan.json"
        if not plan.exists():
            raise LabError(f"there is no lab {name}; there are {', '.join(names()) or 'none'}")
        return cls(**json.loads(plan.read_text()))

    @classmethod
    def fresh(cls, **options: Any) -> Lab:
        """Start a lab under an unused name and subnet; remove what dead labs left there."""
        for number in range(16):
            try:
                return cls(f"test{number}", f"10.90.{number}", **options).start()
            except LabBusy:
                continue
        raise LabBusy("all names for test labs are taken; `status` shows who has them")

    @property
    def stands(self) -> bool:
        """Whether any of its machines is switched on."""
        return any(node.machine.is_on for node in self.nodes)

    @property
    def root_address(self) -> str:
        """The root namespace's address for nodes: of the registry, the tests and the browser."""
        return self.switch.root_address

    def __enter__(self) -> Lab:
        return self if self._started else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def start(self) -> Lab:
        """Create the lab; first remove what a dead process left under its name."""
        fetch()
        self._claim()
        try:
            self.switch.make()
            self.registry.start()
            if self._images and self._planted:
                self._plant(self._planted)
            self._all_at_once(Node.power_on)
        except BaseException:
            self.remove()
            raise
        self._started = True
        return self

    def form_swarm(self) -> None:
        """Make a Swarm of the nodes; in tests of `up`, the product does this."""
        first = self.nodes[0]
        first.run(["docker", "swarm", "init", "--advertise-addr", first.address])
        command = first.run(["docker", "swarm", "join-token", "worker"]).stdout.strip().splitlines()[-1]
        for node in self.nodes[1:]:
            self.join(node, command)

    def switch_on_guest(self) -> Node:
        """Switch on a user's own machine in this network, with the lab's images; return it."""
        if self._images and not self.guest.machine.is_on:
            self._plant([self.guest])
        self.guest.power_on()
        return self.guest

    def join(self, node: Node, command_text: str) -> None:
        """Run a join command on a node, as copied by an administrator."""
        command = shlex.split(command_text.replace("\\\n", " "))
        node.run(command[1:] if command[:1] == ["sudo"] else command)

    def load(self, image: str, nodes: Sequence[Node] | None = None) -> str:
        """Copy an image from the build engine to nodes; return its name in the outside registry."""
        reference = push(image, self.registry)
        pull(reference, nodes or self.nodes, image)
        return reference

    def reset(self) -> None:
        """Remove the Swarm and all containers, networks and volumes; keep images."""
        self._all_at_once(Node.reset)

    def remove(self) -> None:
        """Remove the lab; parts may already be gone."""
        self._all_at_once(Node.remove)
        self.guest.remove()
        self.registry.stop()
        self.switch.remove()
        ControlGroup(f"{_GROUPS}/{self.plan.name}").remove()
        remove_tree(self.data)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _all_at_once(self, action: Callable[[Node], object]) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(action, self.nodes))

    def _plant(self, nodes: Sequence[Node]) -> None:
        """Put the images on the nodes' disks before the engines start."""
        with locked("seeds"):
            ids, seeds = ids_of(self._images), Seed.found(self._images)
            same = [seed for seed in seeds if seed.ids() == ids]
            seed = same[0] if same else self._grow(ids, seeds[:1])
            for node in nodes:
                seed.plant(node.disk.folder)

    def _grow(self, ids: Mapping[str, str], older: Sequence[Seed]) -> Seed:
        """Make a new seed: pull the images on a node whose disk has most layers from an older seed."""
        first = self._planted[0]
        for seed in older:
            seed.plant(first.disk.folder)
        first.power_on()
        for name in ids:
            self.load(name, [first])
        drop_others(first, ids)
        first.engine.stop()
        first.machine.power_off()
        seed = Seed.keep(first.disk.folder, ids)
        first.remove()
        return seed

    def _claim(self) -> None:
        """Claim the lab's name atomically, by renaming a prepared folder to it."""
        name, owner = self.plan.name, process_of(self.folder / "owner")
        if owner:
            raise LabBusy(f"process {owner} has a lab {name}")
        if self.stands and not (self.folder / "owner").exists():
            raise LabBusy(f"the lab {name} stands already; `down --name {name}` removes it")
        self.remove()
        for other in names():
            try:
                subnet = Lab.attach(other).plan.subnet
            except (LabError, OSError):
                continue  # It was just removed.
            if subnet == self.plan.subnet:
                raise LabBusy(f"the lab {other} has the subnet {self.plan.subnet}")
        mine = run_folder() / f".{name}.{os.getpid()}"
        mine.mkdir(parents=True)
        (mine / "plan.json").write_text(json.dumps(asdict(self.plan)))
        if not self._standing:
            (mine / "owner").write_text(own_line())
        try:
            mine.rename(self.folder)
        except OSError:
            shutil.rmtree(mine)
            raise LabBusy(f"another process is making a lab {name} just now") from None

    def _node(self, number: int, gpus: int) -> Node:
        name, plan = f"node{number}", self.plan
        group = f"{_GROUPS}/{plan.name}/{name}"
        machine = Machine(self.folder / name, name, group)
        disk = Disk(machine, self.data / name, dict(enumerate(plan.disk_mb, 1)).get(number))
        options = [f"--insecure-registry={LAB_NETWORK}"] if plan.insecure_registry else []
        options += [f"--node-generic-resource=GPU=GPU-fake{number}{gpu}" for gpu in range(gpus)]
        if len(plan.pod_networks) >= number:
            options += for_kubelet(plan.pod_networks[number - 1])
        return Node(number, machine, Engine(machine, disk.folder, options), disk, self.switch)


def names() -> list[str]:
    """Return the names of the labs that exist."""
    return sorted(path.parent.name for path in run_folder().glob("*/plan.json"))
