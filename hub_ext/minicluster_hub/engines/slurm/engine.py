"""Starts agents as steps of Slurm's jobs. Slurm decides which gang gets which nodes, and when."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from traitlets import Dict, Float, Integer, List, Unicode, default

from minicluster.wire import Versions
from minicluster_hub.engines.base import Engine, ImageUnknown, TaskLaunch, TaskRefused
from minicluster_hub.engines.capabilities import TaskImages
from minicluster_hub.engines.local.data_agent import LocalDataAgent
from minicluster_hub.engines.local.engine import INHERITED
from minicluster_hub.engines.local.homes import home_of
from minicluster_hub.engines.local.lighthouses import LocalLighthouses
from minicluster_hub.engines.local.watch import LOOPBACK
from minicluster_hub.engines.slurm.commands import Commands
from minicluster_hub.engines.slurm.data_agent import SharedDataAgent
from minicluster_hub.engines.slurm.names import Names
from minicluster_hub.engines.slurm.parsing import SlurmNode
from minicluster_hub.engines.slurm.queue import SlurmQueue
from minicluster_hub.engines.slurm.settings import SlurmSettings
from minicluster_hub.engines.slurm.tasks import BEGUN, SlurmTasks
from minicluster_hub.engines.slurm.users import LinuxUsers
from minicluster_hub.engines.slurm.view import SlurmView
from minicluster_hub.jobs.records import NodeView, TaskView

OTHERS_JOBS = "other jobs of Slurm use all of it"
_CLUSTER_LABEL = "MINICLUSTER_SLURM"
_MEMORY = "/dev/shm"  # noqa: S108 - memory, not a folder for files of anybody
_SECRET_BYTES = 32
_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - to be told from an address


class SlurmEngine(Engine):
    """Runs on a machine that has Slurm's commands, a login node, say."""

    data_sets_option = "SlurmEngine.shared_dir"
    data_dir = Unicode(help="Folder of the cluster's data.").tag(config=True)
    slurm_conf = Unicode(help="Path of slurm.conf; where Slurm looks for it if empty.").tag(config=True)
    partition = Unicode(help="Slurm's partition; its default one if empty.").tag(config=True)
    account = Unicode(help="Account that Slurm charges; each user's own if empty.").tag(config=True)
    accounts = Dict(
        value_trait=Unicode(), key_trait=Unicode(), help="Accounts of single users, by their names."
    ).tag(config=True)
    qos = Unicode(help="Quality of service of all jobs; each user's own if empty.").tag(config=True)
    constraint = Unicode(help="Features that nodes must have, as sbatch --constraint takes them.").tag(
        config=True
    )
    time_limit_s = Float(
        0.0,
        min=0.0,
        help="Seconds that Slurm lets a job run that has no --timeout; 0: as the partition says. When they "
        "are over, the job goes on from its snapshot in a new one. Less lets Slurm start it sooner.",
    ).tag(config=True)
    gres = Unicode("gpu", help="Slurm's name of a slot's GPU: gpu, or gpu:a100.").tag(config=True)
    cpu_slots = Integer(
        1, min=1, help="Slots of a node where no node has GPUs; with 1, a job has its nodes for itself."
    ).tag(config=True)
    cpus_per_slot = Integer(
        0, min=0, help="CPUs for each GPU, or for each of several CPU slots; 0: as Slurm is set up."
    ).tag(config=True)
    sbatch_options = List(Unicode(), help="Further options of sbatch, for example --reservation=lab.").tag(
        config=True
    )
    become = List(
        Unicode(),
        help="Words that run a command as the Linux user {user}: sudo -n -u {user} -- /usr/local/bin/"
        "minicluster-as-user. Empty: all users' jobs run as the service's own user.",
    ).tag(config=True)
    users_group = Unicode(help="Linux group whose members' jobs may run; empty: all users'.").tag(config=True)
    python = Unicode(sys.executable, help="The Python that runs the agents, on the nodes.").tag(config=True)
    images = List(Unicode(), help="References of images that jobs may run in, the default one first.").tag(
        config=True
    )
    image_command = List(
        Unicode(),
        ["apptainer", "exec", "--nv", "docker://{image}"],
        help="Words that run a command in the image {image} on a node.",
    ).tag(config=True)
    tmp_dir = Unicode(
        "/tmp",  # noqa: S108 - what is made there has a name that nobody can guess
        help="Folder on the nodes for the files of running tasks.",
    ).tag(config=True)
    shared_dir = Unicode(
        help="Folder that all nodes see at this path, for data sets; empty: there are none."
    ).tag(config=True)
    data_cache_bytes = Integer(
        0, min=0, help="Most bytes of data sets in shared_dir; 0: as much as its disk takes."
    ).tag(config=True)
    service_host = Unicode(
        help="This machine's address for the nodes, where fault-tolerant ranks meet; by default that of "
        "agents_bind_url."
    ).tag(config=True)
    service_ca_file = Unicode(
        help="PEM file of the authority that signed the job service's certificate; by default tls_ca_file."
    ).tag(config=True)

    @default("data_dir")
    def _default_data_dir(self) -> str:
        return str(getattr(self.parent, "data_dir", "data"))

    @default("service_host")
    def _default_service_host(self) -> str:
        host = urlsplit(getattr(self.parent, "agents_bind_url", "")).hostname or LOOPBACK
        return LOOPBACK if host in _ALL_ADDRESSES else host

    @default("service_ca_file")
    def _default_service_ca_file(self) -> str:
        return str(getattr(self.parent, "tls_ca_file", ""))

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        log = cast(logging.Logger, self.log)
        self._data = Path(self.data_dir).resolve()
        self._names = Names(_secret(self._data / "slurm" / "secret"))
        self._settings = self._make_settings()
        self._users = LinuxUsers(self.become, self.users_group)
        self._commands = commands = Commands(self.become, self.partition, self.slurm_conf)
        self._view = view = SlurmView(commands, self._names, self._whose, self._busy, log)
        self._queue = self.batch_queue = SlurmQueue(
            commands, view, self._names, self._settings, self._users.of, self._changed, log
        )
        self._tasks = SlurmTasks(
            commands, view, self._names, self._settings, self._data / "slurm" / "tasks", self._changed, log
        )
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._lighthouses = self.lighthouses = LocalLighthouses(
            self._data, sys.executable, inherited, log, self._changed, self.service_host
        )
        self.task_images = SlurmImages(self.images) if self.images else None
        self._data_agent = self.data_agents = self._make_data_agent(inherited) if self.shared_dir else None

    async def open(self) -> None:
        await self._view.open()
        self._view.on_change = self._on_view_change
        self._tasks.open()
        self._lighthouses.open()
        if self._data_agent is not None:
            self._data_agent.open([node.name for node in self.nodes()])

    async def start(self, launch: TaskLaunch) -> None:
        if self._tasks.knows(launch.task_id):
            return
        if launch.node not in self._view.nodes:
            known = ", ".join(self._view.nodes)
            raise TaskRefused(f"Slurm has no node {launch.node}; there are: {known}")
        found = self._queue.allocation_for(launch.gang_id, launch.job_id, launch.node)
        slurm_job = found.job.id if found is not None else None
        if not self.images:
            launch = replace(launch, image=None)  # A job that comes from another engine may name one.
        self._tasks.start(launch, slurm_job, self._given(launch))

    async def end(self, task_id: int) -> None:
        await self._tasks.end(task_id, self._folders(task_id))

    def tasks(self) -> Mapping[int, TaskView]:
        return self._tasks.views()

    def forget(self, task_id: int) -> None:
        self._tasks.forget(task_id)

    def nodes(self) -> tuple[NodeView, ...]:
        held, gpus = self._queue.held_nodes(), self._queue.gpus
        listed = self._view.nodes.values()
        return tuple(self._node_view(one, held) for one in listed if one.gpus or not gpus)

    def environment(self) -> Versions | None:
        return Versions.here() if self.python == sys.executable and not self.images else None

    async def close(self) -> None:
        self._tasks.close()
        await self._queue.close()
        await self._view.close()
        self._lighthouses.close()
        if self._data_agent is not None:
            self._data_agent.close()

    # --- what Slurm has -----------------------------------------------------------------------

    def _changed(self) -> None:
        self.on_change()

    def _on_view_change(self) -> None:
        self._tasks.note_listed()
        self._changed()

    def _whose(self) -> set[str]:
        """Return the users whose jobs are looked at. After the first reading all of them are known."""
        if self._users.own:
            return {self._users.own}
        return self._users.seen | {one.job.user for one in self._view.allocations.values()}

    def _busy(self) -> bool:
        return self._queue.busy or self._tasks.busy

    def _node_view(self, node: SlurmNode, held: set[str]) -> NodeView:
        closed = node.closed or (OTHERS_JOBS if node.full and node.name not in held else "")
        return NodeView(
            node.name,
            node.up,
            node.address,
            ("gpu",) * node.gpus or ("cpu",) * self.cpu_slots,
            closed=closed,
            cpus=node.cpus,
            memory_bytes=node.memory_bytes,
        )

    # --- what a task is started with ------------------------------------------------------------

    def _folders(self, task_id: int) -> tuple[str, str]:
        """Return a task's folders on its node: on disk, and in memory."""
        name = self._names.scratch(task_id)
        return f"{self.tmp_dir}/{name}", f"{_MEMORY}/{name}"

    def _given(self, launch: TaskLaunch) -> dict[str, object]:
        """Return what a task reads from its standard input."""
        scratch, memory = self._folders(launch.task_id)
        kinds = next((one.slot_kinds for one in self.nodes() if one.name == launch.node), ())
        environment = {
            "MINICLUSTER_SERVICE_URL": ",".join(launch.service_urls),
            "MINICLUSTER_NODE": launch.node,
            "MINICLUSTER_SLOTS": ",".join(map(str, launch.slots)),
            "MINICLUSTER_NODE_SLOTS": str(len(kinds)),
            "MINICLUSTER_TASK": str(launch.task_id),
            "MINICLUSTER_SCRATCH": scratch,
            "MINICLUSTER_MEMORY": f"{memory}/snapshots",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            _CLUSTER_LABEL: str(self._data),
            **(self._data_sets(scratch) if self.shared_dir else {}),
            **({"MINICLUSTER_SERVICE_CA": self._ca()} if self.service_ca_file else {}),
        }
        given: dict[str, object] = {"token": launch.token, "environment": environment, "begun": BEGUN}
        return given | {"folder": self._folder_of(launch.owner)}

    def _data_sets(self, scratch: str) -> dict[str, str]:
        """Return where a task finds its data sets, and where these are fetched to."""
        return {
            "MINICLUSTER_DATA_SETS": f"{scratch}/data",
            "MINICLUSTER_DATA_CACHE": f"{self.shared_dir}/data-cache",
        }

    def _ca(self) -> str:
        try:
            return Path(self.service_ca_file).read_text()
        except OSError as error:
            raise TaskRefused(f"{self.service_ca_file} cannot be read: {error.strerror}") from error

    def _folder_of(self, owner: str) -> str:
        """Return where the agent runs: "" for the home of a Linux user."""
        home = home_of(self._data, owner)
        return str(home) if self._users.own and home.is_dir() else ""

    def _make_settings(self) -> SlurmSettings:
        return SlurmSettings(
            python=self.python,
            partition=self.partition,
            account=self.account,
            qos=self.qos,
            constraint=self.constraint,
            time_limit_s=self.time_limit_s,
            cpus_per_slot=self.cpus_per_slot,
            cpu_slots=self.cpu_slots,
            gres=self.gres,
            extra=tuple(self.sbatch_options),
            image_command=tuple(self.image_command),
            accounts=dict(self.accounts),
        )

    def _make_data_agent(self, inherited: Mapping[str, str]) -> SharedDataAgent:
        folder, log = Path(self.shared_dir), cast(logging.Logger, self.log)

        def make(nodes: Sequence[str]) -> LocalDataAgent:
            return LocalDataAgent(
                folder, sys.executable, nodes, self.data_cache_bytes, inherited, log, self._changed
            )

        return SharedDataAgent(make)


class SlurmImages(TaskImages):
    """Images that a node's container runtime fetches by itself. own: the references of the options."""

    def __init__(self, own: Sequence[str]) -> None:
        self._own = tuple(own)

    def own(self) -> tuple[str, ...]:
        return self._own

    def on_nodes(self) -> Mapping[str, Sequence[str]]:
        return {}

    async def digest(self, reference: str) -> str:
        """Raises ImageUnknown for a tag: only a registry could tell its digest."""
        _, found, digest = reference.partition("@")
        if not found:
            raise ImageUnknown(f"{reference} is a tag: name the image with its digest, NAME@sha256:...")
        return digest


def _secret(path: Path) -> bytes:
    """Return the secret that signs names; it is made once. Raises ValueError."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.touch(mode=0o600)
            fresh.write_bytes(secrets.token_bytes(_SECRET_BYTES))
            with suppress(FileExistsError):  # Another job service was faster.
                os.link(fresh, path)
            fresh.unlink()
        secret = path.read_bytes()
    except OSError as error:
        raise ValueError(f"the data folder cannot be used: {path}: {error.strerror}") from error
    if len(secret) != _SECRET_BYTES:
        raise ValueError(f"{path} is damaged; when no job of this cluster is in Slurm, delete it")
    return secret
