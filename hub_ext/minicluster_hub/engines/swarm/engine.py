"""Starts agents as services of a Docker Swarm, one per task, and finds them again by their labels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from traitlets import Bool, Float, Integer, List, Unicode

from minicluster_hub.engines.base import Engine, ImageUnknown, TaskLaunch, TaskRefused
from minicluster_hub.engines.capabilities import TaskImages
from minicluster_hub.engines.swarm.data_agents import SwarmDataAgents
from minicluster_hub.engines.swarm.docker import Docker, DockerConflict, DockerError, DockerRefused
from minicluster_hub.engines.swarm.exit_reasons import ExitReasons
from minicluster_hub.engines.swarm.gpus.holds import SwarmGpuHolds
from minicluster_hub.engines.swarm.gpus.share import SharedGpu
from minicluster_hub.engines.swarm.gpus.sharing import SwarmSharedGpus
from minicluster_hub.engines.swarm.lighthouses import SwarmLighthouses
from minicluster_hub.engines.swarm.names import GANG_LABEL, TASK_LABEL, label_filter, task_name
from minicluster_hub.engines.swarm.networks import GangNetworks
from minicluster_hub.engines.swarm.pull_retries import PullRetries
from minicluster_hub.engines.swarm.reflector import Reflector
from minicluster_hub.engines.swarm.spec import TaskSettings, host_name, secret_spec, service_spec
from minicluster_hub.engines.swarm.tenant_limits import PIDS, NodeReserve
from minicluster_hub.engines.swarm.view import SwarmNode, slot_kinds
from minicluster_hub.jobs.records import NodeView, TaskView

_POLLS_TO_APPEAR, _APPEARS_WITHIN_S = 5, 15.0
"""A new service's task is listed after a poll or two. One not listed after both limits was never created."""
DEDICATED = "it is a manager, which runs the cluster's own services only"


class SwarmEngine(Engine):
    """The nodes of a Swarm. Runs on a manager, with its Docker socket."""

    image = Unicode(help="Image of tasks, with its digest: REGISTRY/NAME@sha256:...").tag(config=True)
    images = List(Unicode(), help="Further images that a job may ask for with --image.").tag(config=True)
    shm_bytes = Integer(
        2 * 1024**3,
        help="Size of a task's /dev/shm in bytes; memory is taken only when it is used.",
    ).tag(config=True)
    host_network = Bool(
        False,
        help="Tasks use their node's network: a little faster, but users' jobs are not isolated.",
    ).tag(config=True)
    verify_gpus = Bool(
        True, help="End a task that does not see the GPUs that Swarm assigned to it; off for simulated GPUs."
    ).tag(config=True)
    stop_grace_s = Float(
        1.0, help="Seconds that an agent gets to end its ranks before its container is killed."
    ).tag(config=True)
    settle_s = Float(
        6.0,
        help="Seconds for which a job that lost a node gets no other one in its place. Until the engines "
        "notice the loss, a task that joins the job's network waits 30 s for the lost node.",
    ).tag(config=True)
    pids = Integer(PIDS, help="The most processes and threads that a task may have at once.").tag(config=True)
    memory_per_slot_bytes = Integer(
        0,
        help="The most memory that a task may take for each of its slots, in bytes; 0: the slot's share of "
        "its node's memory, without the reserve.",
    ).tag(config=True)
    reserve_memory_bytes = Integer(
        NodeReserve().memory_bytes,
        help="Memory of each node that jobs leave to the platform, in bytes; at most a quarter of the node.",
    ).tag(config=True)
    reserve_cpus = Float(
        NodeReserve().cpus, help="CPU cores of each node that jobs leave to the platform; at most a quarter."
    ).tag(config=True)
    dedicated_managers = Bool(
        False, help="Managers run the cluster's own services only: no jobs, no notebook servers."
    ).tag(config=True)
    service_ca_file = Unicode(
        help="PEM file of the authority that signed the job service's certificate; empty for plain HTTP."
    ).tag(config=True)
    data_cache_bytes = Integer(
        0, min=0, help="Most bytes of data sets that each node caches; 0: as much as its disk takes."
    ).tag(config=True)
    watch_gpus = Bool(
        False, help="Ask each node's driver whether the GPUs of notebook servers are used."
    ).tag(config=True)
    share_gpus = Bool(
        False,
        help="Divide GPUs into halves, for cells with --gpu-share and for notebook servers. The processes on "
        "one GPU can end each other, and share /dev/shm.",
    ).tag(config=True)
    docker_url = Unicode(help="The manager's Docker API; the machine's socket by default.").tag(config=True)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._log = log = cast(logging.Logger, self.log)
        self._docker = docker = Docker.connect(self.docker_url or None)
        self._view = view = Reflector(docker, role="task", log=log)
        self._networks = GangNetworks(docker, log)
        self._exit_reasons = ExitReasons(docker, log, self._changed)
        self._pull_retries = PullRetries(docker, view, log, self._record_creation)
        own_images = tuple(dict.fromkeys(image for image in (self.image, *self.images) if image))

        def settings() -> TaskSettings:
            return self.task_settings

        self._shared_gpus = SwarmSharedGpus(docker, view, settings, log, self._changed)
        self.gpu_sharing = self._shared_gpus if self.share_gpus else None
        self._lighthouses = self.lighthouses = SwarmLighthouses(docker, self._networks, view, settings, log)
        self._gpu_holds = self.gpu_holds = SwarmGpuHolds(docker, view, settings, self._shared_gpus)
        self._data_agents = self.data_agents = SwarmDataAgents(docker, view, settings, log, self._changed)
        self.task_images = SwarmImages(docker, view, own_images)
        self._gangs: dict[int, int] = {}
        """The gang of each task that may have something in the Swarm."""
        self._creations: dict[int, tuple[int, float]] = {}
        """How many polls were over, and the time, when each task's service was created."""
        self._ended: set[int] = set()

    async def open(self) -> None:
        await self._view.open()
        self._view.on_change = self._on_view_change
        self._on_view_change()
        for service in await self._docker.call("services", filters=label_filter("task")):
            # Created a moment before the former job service was killed: its task is not listed yet.
            self._register_task(service["Spec"]["Labels"])
        for secret in await self._docker.call("secrets", filters=label_filter("task")):
            # Left by a start that was interrupted before its service: the next start creates another one.
            if int(secret["Spec"]["Labels"][TASK_LABEL]) not in self._gangs:
                await self._docker.remove("remove_secret", secret["Spec"]["Name"])
        await self._lighthouses.open()
        await self._gpu_holds.open()
        await self._shared_gpus.open()
        await self._data_agents.open()
        await self._networks.find_unused()

    async def start(self, launch: TaskLaunch) -> None:
        if launch.task_id in self._gangs:
            return
        node = self._view.node_named(launch.node)
        if node is None:
            raise TaskRefused(f"there is no node {launch.node} in the Swarm any more")
        kinds = slot_kinds(self._view.nodes)[node.name]
        self._networks.add_task(launch.gang_id, launch.task_id)
        try:
            secret_id = await self._docker.with_retries(
                lambda: self._create_secret_and_network(launch), self._log
            )
            shared = await self._shared(launch, node)
            spec = service_spec(launch, node, kinds, secret_id, self.task_settings, shared)
            await self._docker.with_retries(lambda: self._docker.create("create_service", **spec), self._log)
            self._pull_retries.remember(launch.task_id, spec)
        except DockerRefused as error:
            raise TaskRefused(f"Docker refused the task on {launch.node}: {error.message}") from error
        finally:
            # From here on parts of the task may exist; `end` removes them.
            self._gangs[launch.task_id] = launch.gang_id
            self._record_creation(launch.task_id)
            self._view.poll_soon()

    async def end(self, task_id: int) -> None:
        name = task_name(task_id)
        await self._pull_retries.stop(task_id)
        await self._docker.remove("remove_service", name)
        self._view.poll_soon()
        # No task needs it any more; a frozen node would keep it for long.
        await self._docker.remove("remove_secret", name)
        while self._view.remains(name):
            await self._view.next_poll()
        gang_id = self._gangs.get(task_id)
        if gang_id is not None:
            await self._networks.release(gang_id, task_id)
        self._ended.add(task_id)

    def tasks(self) -> Mapping[int, TaskView]:
        return {task_id: self._task_view(task_id) for task_id in self._gangs.keys() | self._ended}

    def forget(self, task_id: int) -> None:
        for known in (self._gangs, self._creations):
            known.pop(task_id, None)
        self._ended.discard(task_id)
        self._exit_reasons.forget(task_name(task_id))

    def nodes(self) -> tuple[NodeView, ...]:
        ready, kinds = self._view.ready, slot_kinds(self._view.nodes)
        return tuple(
            NodeView(
                name=one.name,
                up=ready(one),
                address=one.address,
                slot_kinds=kinds[one.name],
                closed=self.closed(one),
                cpus=one.cpus,
                memory_bytes=one.memory_bytes,
                no_gpu_share=self._no_gpu_share(one),
            )
            for one in self._view.nodes
        )

    def task_address(self, task_id: int, node: str) -> str:
        return super().task_address(task_id, node) if self.host_network else host_name(task_id)

    async def close(self) -> None:
        await self._data_agents.close()
        await self._shared_gpus.close()
        await self._exit_reasons.close()
        await self._pull_retries.close()
        await self._networks.close()
        await self._view.close()
        self._docker.close()

    def closed(self, node: SwarmNode) -> str:
        """Return why a node takes no jobs and no notebook servers, "" if it does."""
        return DEDICATED if self.dedicated_managers and node.manager else ""

    def _no_gpu_share(self, node: SwarmNode) -> str:
        """Return why GPUs of a node are not shared, "" if they are."""
        if not self.share_gpus:
            return "this cluster does not share GPUs"
        return self._shared_gpus.refusals.get(node.id, "") if node.gpus else "it has no GPU"

    @cached_property
    def task_settings(self) -> TaskSettings:
        """What all tasks have in common."""
        return TaskSettings(
            image=self.image,
            shm_bytes=self.shm_bytes,
            host_network=self.host_network,
            verify_gpus=self.verify_gpus,
            stop_grace_s=self.stop_grace_s,
            pids=self.pids,
            memory_per_slot_bytes=self.memory_per_slot_bytes,
            reserve=NodeReserve(self.reserve_memory_bytes, self.reserve_cpus),
            service_ca=Path(self.service_ca_file).read_text() if self.service_ca_file else "",
            data_cache_bytes=self.data_cache_bytes,
            watch_gpus=self.watch_gpus,
        )

    # --- the Swarm's view ----------------------------------------------------------------------

    def _changed(self) -> None:
        self.on_change()

    def _on_view_change(self) -> None:
        """Register tasks that an earlier service started; wake the reconciler."""
        for task in self._view.tasks.values():
            if self._view.is_there(task):
                self._register_task(task.labels)
        self._networks.sweep_soon()
        self._changed()

    def _register_task(self, labels: Mapping[str, str]) -> None:
        task_id, gang_id = int(labels[TASK_LABEL]), int(labels[GANG_LABEL])
        if task_id not in self._gangs:
            self._gangs[task_id] = gang_id
            self._record_creation(task_id)
            self._networks.add_task(gang_id, task_id)

    def _task_view(self, task_id: int) -> TaskView:
        if task_id in self._ended:
            return TaskView(task_id, alive=False, clean=True)
        task = self._view.tasks.get(task_name(task_id))
        if self._pull_retries.tries_again(task_id, task):
            return TaskView(task_id, alive=True, starting=True)
        if task is None:
            starting = self._may_still_appear(task_id)
            return TaskView(task_id, alive=starting, starting=starting)
        if task.starting:
            stuck = self._exit_reasons.stuck(task)
            return TaskView(task_id, alive=not stuck, starting=not stuck, detail=stuck or "")
        reason = "" if task.running else self._exit_reasons.reason(task)
        if reason is None:  # It counts as alive until its log is fetched.
            return TaskView(task_id, alive=True, exit_code=task.exit_code)
        return TaskView(
            task_id,
            alive=task.running,
            exit_code=task.exit_code,
            detail=reason,
            node_lost=task.abandoned or not self._view.is_up(task.node_id),
        )

    def _record_creation(self, task_id: int) -> None:
        loop = asyncio.get_running_loop()
        self._creations[task_id] = self._view.polls, loop.time()
        loop.call_later(_APPEARS_WITHIN_S, self._changed)

    def _may_still_appear(self, task_id: int) -> bool:
        """Whether a task that is not listed may still appear: its service is new."""
        polls, at = self._creations[task_id]
        new = asyncio.get_running_loop().time() - at < _APPEARS_WITHIN_S
        return new or self._view.polls <= polls + _POLLS_TO_APPEAR

    # --- creation -------------------------------------------------------------------------------

    async def _shared(self, launch: TaskLaunch, node: SwarmNode) -> SharedGpu | None:
        """Return the GPU of which a task has a share, once it can be shared."""
        if launch.gpu_share is None:
            return None
        slot = launch.slots[0]
        return await self._docker.with_retries(lambda: self._shared_gpus.share(node, slot), self._log)

    async def _create_secret_and_network(self, launch: TaskLaunch) -> str:
        """Create what a task's service needs, at the same time; return the secret's id."""
        if self.host_network or launch.serves:
            return await self._create_secret(launch)
        secret_id, _ = await asyncio.gather(self._create_secret(launch), self._networks.make(launch.gang_id))
        return secret_id

    async def _create_secret(self, launch: TaskLaunch) -> str:
        spec = secret_spec(launch)
        try:
            created = await self._docker.call("create_secret", **spec)
        except DockerConflict:
            # An interrupted start left it. The store has only its hash, so a new secret replaces it,
            # and a service with the former secret, which could never log in, is removed.
            await self._docker.remove("remove_service", spec["name"])
            await self._docker.remove("remove_secret", spec["name"])
            created = await self._docker.call("create_secret", **spec)
        return str(created["ID"])


class SwarmImages(TaskImages):
    """The images that tasks run in. own: the references that the options offer, the default one first."""

    def __init__(self, docker: Docker, view: Reflector, own: tuple[str, ...]) -> None:
        self._docker = docker
        self._view = view
        self._own = own

    def own(self) -> tuple[str, ...]:
        return self._own

    def on_nodes(self) -> Mapping[str, Collection[str]]:
        names = {node.id: node.name for node in self._view.nodes}
        found: dict[str, set[str]] = {}
        for image, node_id in self._view.images:
            if node_id in names:
                found.setdefault(image, set()).add(names[node_id])
        return found

    async def digest(self, reference: str) -> str:
        try:
            found = await self._docker.call("inspect_distribution", reference)
        except DockerError as error:
            raise ImageUnknown(str(error)) from error
        return str(found["Descriptor"]["digest"])
