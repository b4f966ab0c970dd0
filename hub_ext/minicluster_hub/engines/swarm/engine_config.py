"""What an administrator sets for tasks on a Swarm."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from traitlets import Bool, Float, Integer, List, Unicode

from minicluster_hub.engines.base import Engine
from minicluster_hub.engines.swarm.spec import TaskSettings
from minicluster_hub.engines.swarm.tenant_limits import PIDS, Reserve
from minicluster_hub.engines.swarm.view import SwarmNode

DEDICATED = "it is a manager, which runs the cluster's own services only"


class SwarmEngineConfig(Engine):
    """The traits, and what of them reaches the pure parts."""

    image = Unicode(help="Image of tasks, with its digest: REGISTRY/NAME@sha256:...").tag(config=True)
    images = List(Unicode(), help="Further images that a job may ask for with --image.").tag(config=True)
    shm_bytes = Integer(
        2 * 1024**3,
        help="Size of a task's /dev/shm in bytes; memory is taken only when it is used.",
    ).tag(config=True)
    host_network = Bool(
        False, help="Tasks use their node's network: a little faster, and no wall between two users' jobs."
    ).tag(config=True)
    verify_gpus = Bool(
        True, help="End a task that does not see the GPUs that Swarm gave it; off for pretended GPUs."
    ).tag(config=True)
    stop_grace_s = Float(
        1.0, help="Seconds that an agent gets to end its ranks before its container is killed."
    ).tag(config=True)
    settle_s = Float(
        6.0,
        help="Seconds for which a job that lost a node gets no other one in its place. Until the engines "
        "know of the loss, whoever joins the job's network waits 30 s for the lost node.",
    ).tag(config=True)
    pids = Integer(PIDS, help="The most processes and threads that a task may have at once.").tag(config=True)
    memory_per_slot_bytes = Integer(
        0,
        help="The most memory that a task may take for each of its slots, in bytes; 0: the slot's share of "
        "its node's memory, without the reserve.",
    ).tag(config=True)
    reserve_memory_bytes = Integer(
        Reserve().memory_bytes,
        help="Memory of each node that jobs leave to the platform, in bytes; at most a quarter of the node.",
    ).tag(config=True)
    reserve_cpus = Float(
        Reserve().cpus, help="CPU cores of each node that jobs leave to the platform; at most a quarter."
    ).tag(config=True)
    dedicated_managers = Bool(
        False, help="Managers run the cluster's own services only: no jobs, no notebook servers."
    ).tag(config=True)
    service_ca_file = Unicode(
        help="The authority by which agents know the job service, as PEM; empty where they speak plain HTTP."
    ).tag(config=True)
    data_cache_bytes = Integer(
        0, min=0, help="Most bytes of data sets that are kept on each node; 0: as much as its disk takes."
    ).tag(config=True)
    watch_gpus = Bool(
        False, help="Ask each node's driver whether GPUs are used: for notebook servers that have some."
    ).tag(config=True)
    docker_url = Unicode(help="The manager's Docker API; the machine's socket by default.").tag(config=True)

    def closed(self, node: SwarmNode) -> str:
        """Return why a node takes no jobs and no notebook servers, "" if it does."""
        return DEDICATED if self.dedicated_managers and node.manager else ""

    @cached_property
    def _service_ca(self) -> str:
        return Path(self.service_ca_file).read_text() if self.service_ca_file else ""

    def task_settings(self) -> TaskSettings:
        """Return what all tasks have in common."""
        return TaskSettings(
            image=self.image,
            shm_bytes=self.shm_bytes,
            host_network=self.host_network,
            verify_gpus=self.verify_gpus,
            stop_grace_s=self.stop_grace_s,
            pids=self.pids,
            memory_per_slot_bytes=self.memory_per_slot_bytes,
            reserve=Reserve(self.reserve_memory_bytes, self.reserve_cpus),
            service_ca=self._service_ca,
            data_cache_bytes=self.data_cache_bytes,
            watch_gpus=self.watch_gpus,
        )
