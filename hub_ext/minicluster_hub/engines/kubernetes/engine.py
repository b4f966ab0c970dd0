"""Starts agents as pods of a Kubernetes namespace, one per task, and finds them again by their labels."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from minicluster_hub.engines.base import TaskLaunch, TaskRefused
from minicluster_hub.engines.kubernetes import leader_lease
from minicluster_hub.engines.kubernetes.api_client.client import (
    ApiConflict,
    ApiMissing,
    ApiRefused,
    Document,
    KubernetesApi,
)
from minicluster_hub.engines.kubernetes.api_client.paths import Paths
from minicluster_hub.engines.kubernetes.cluster_view import ClusterView
from minicluster_hub.engines.kubernetes.data_agents import KubernetesDataAgents
from minicluster_hub.engines.kubernetes.exit_reasons import ExitReasons
from minicluster_hub.engines.kubernetes.gang_objects import GangObjects
from minicluster_hub.engines.kubernetes.images import KubernetesImages, by_own_name
from minicluster_hub.engines.kubernetes.leader_lease import KubernetesLeaderLease
from minicluster_hub.engines.kubernetes.lighthouses import KubernetesLighthouses
from minicluster_hub.engines.kubernetes.names import GANG_LABEL, SPEC_MARK, TASK, TASK_LABEL
from minicluster_hub.engines.kubernetes.options import KubernetesOptions
from minicluster_hub.engines.kubernetes.queues.dialects import DIALECTS
from minicluster_hub.engines.kubernetes.queues.queue import KubernetesQueue
from minicluster_hub.engines.kubernetes.spec import TaskSettings, task_spec
from minicluster_hub.engines.kubernetes.view import KubernetesNode, PodView, held_gpus, slot_kinds
from minicluster_hub.jobs.records import NodeView, TaskView

NO_SHARING = "this cluster's engine does not share GPUs; Kubernetes' device plugins can"
REMOVED = "somebody else had its pod deleted: an admin, or Kubernetes for its node"
_AGAIN_S = 0.2
"""After how long a pod is created again whose name is still taken."""


class KubernetesEngine(KubernetesOptions):
    """The nodes of a Kubernetes cluster."""

    data_sets_option = "KubernetesEngine.data_storage_class"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._log = log = cast(logging.Logger, self.log)
        self._api = api = KubernetesApi(self.kubeconfig, self.context)
        self._paths = paths = Paths(self.namespace)
        self._view = view = ClusterView(api, paths, self.names, self.node_settings, log)
        self._exit_reasons = ExitReasons(api, paths, log, self._changed)

        def settings() -> TaskSettings:
            return self.task_settings

        self._gang_objects = GangObjects(api, paths, self.names, settings, log)
        shared = api, paths, self.names, view
        self._lighthouses = KubernetesLighthouses(*shared, self._gang_objects, settings, log)
        self.lighthouses = self._lighthouses
        self._data_agents: KubernetesDataAgents | None = None
        if self.data_volumes is not None:
            self._data_agents = KubernetesDataAgents(*shared, self.data_volumes, settings, log, self._changed)
            self.data_agents = self._data_agents
        self.task_images = KubernetesImages(view, self.own_images)
        self.leader_lease = self._leader_lease if self.elect_leader else None
        self._queue: KubernetesQueue | None = None
        if self.queue in DIALECTS:
            dialect = DIALECTS[self.queue](self.queue_name, self.gpu_resource)
            self._queue = KubernetesQueue(
                api, self.namespace, self.names, dialect, self._open_slots, self._changed, log
            )
            self.batch_queue = self._queue
        self._gangs: dict[int, int] = {}
        """The gang of each task that may have a pod."""
        self._starting: set[int] = set()
        """Tasks whose pods are being created."""
        self._ending: set[int] = set()
        self._ended: set[int] = set()

    async def open(self) -> None:
        await self._view.open()
        self._view.on_change = self._on_view_change
        self._register_pods(self._view.pods.values())
        if self._queue is not None:
            await self._queue.open()
        await self._lighthouses.open()
        await self._gang_objects.find_unused()

    async def start(self, launch: TaskLaunch) -> None:
        if launch.task_id in self._gangs:
            return
        node = self._view.node(launch.node)
        if node is None:
            raise TaskRefused(f"there is no node {launch.node} in the cluster any more")
        self._register(launch.task_id, launch.gang_id)
        self._starting.add(launch.task_id)
        try:
            await self._api.with_retries(lambda: self._create(launch, node), self._log)
        except ApiRefused as error:
            raise TaskRefused(f"Kubernetes refused the task on {launch.node}: {error.message}") from error
        finally:
            self._starting.discard(launch.task_id)

    async def end(self, task_id: int) -> None:
        self._ending.add(task_id)
        await self._remove_pod(self.names.task(task_id))
        gang_id = self._gangs.get(task_id)
        if gang_id is not None:
            await self._gang_objects.release(gang_id, task_id)
        self._ended.add(task_id)

    def tasks(self) -> Mapping[int, TaskView]:
        return {task_id: self._task_view(task_id) for task_id in self._gangs.keys() | self._ended}

    def forget(self, task_id: int) -> None:
        self._gangs.pop(task_id, None)
        self._ended.discard(task_id)
        self._ending.discard(task_id)
        self._exit_reasons.forget(self.names.task(task_id))

    def nodes(self) -> tuple[NodeView, ...]:
        kinds = self._slot_kinds()
        return tuple(
            NodeView(
                name=node.name,
                up=self._view.is_up(node.name),
                address=node.address,
                slot_kinds=kinds[node.name],
                closed=node.closed,
                cpus=node.cpus,
                memory_bytes=node.memory_bytes,
                no_gpu_share=NO_SHARING,
            )
            for node in self._view.nodes
        )

    def task_address(self, task_id: int, node: str) -> str:
        """Return the address of a task's pod; "" as long as it has none."""
        pod = self._view.pods.get(self.names.task(task_id))
        return pod.address if pod is not None else ""

    async def close(self) -> None:
        if self._data_agents is not None:
            await self._data_agents.close()
        if self._queue is not None:
            await self._queue.close()
        await self._exit_reasons.close()
        await self._view.close()
        await self._api.close()

    def _leader_lease(self, holder: str) -> KubernetesLeaderLease:
        api = KubernetesApi(self.kubeconfig, self.context, retry_s=leader_lease.RETRY_S)
        pod = os.environ.get(leader_lease.POD_ENV, "")
        return KubernetesLeaderLease(api, self._paths, self.names, holder, pod=pod)

    # --- the cluster's view -----------------------------------------------------------------------

    def _changed(self) -> None:
        self.on_change()

    def _on_view_change(self, pod_name: str) -> None:
        """Register tasks that another service started, even if their pods come late; wake the reconciler."""
        pods = self._view.pods
        if pod_name in pods:
            self._register_pods([pods[pod_name]])
        elif not pod_name:
            self._register_pods(pods.values())
        self._changed()

    def _register_pods(self, pods: Iterable[PodView]) -> None:
        """Register the pods of tasks, without those that are only still listed."""
        for pod in pods:
            task_id, gang_id = pod.number(TASK_LABEL), pod.number(GANG_LABEL)
            if pod.role != TASK or task_id is None or gang_id is None or (pod.deleted and pod.over):
                continue
            if task_id not in self._ended:
                self._register(task_id, gang_id)

    def _register(self, task_id: int, gang_id: int) -> None:
        if task_id not in self._gangs:
            self._gangs[task_id] = gang_id
            self._gang_objects.add_user(gang_id, task_id)

    def _slot_kinds(self) -> dict[str, tuple[str, ...]]:
        tasks = (pod for pod in self._view.pods.values() if pod.role == TASK)
        return slot_kinds(self._view.nodes, held_gpus(tasks))

    def _open_slots(self) -> tuple[dict[str, int], bool]:
        """Return how many slots each node has that takes jobs now, and whether slots are GPUs."""
        kinds = self._slot_kinds()
        taking = [node.name for node in self._view.nodes if self._view.is_up(node.name) and not node.closed]
        gpus = any("gpu" in of_node for of_node in kinds.values())
        return {name: len(kinds[name]) for name in taking}, gpus

    def _task_view(self, task_id: int) -> TaskView:
        if task_id in self._ended:
            return TaskView(task_id, alive=False, clean=True)
        if task_id in self._starting:  # A pod of that name is an earlier start's.
            return TaskView(task_id, alive=True, starting=True)
        pod = self._view.pods.get(self.names.task(task_id))
        if pod is None:
            return TaskView(task_id, alive=False, node_lost=True, detail=REMOVED)
        return self._view_of(task_id, pod)

    def _view_of(self, task_id: int, pod: PodView) -> TaskView:
        if self._queue is not None and (why := self._queue.taken_back(self._gangs.get(task_id, 0))):
            return TaskView(task_id, alive=False, node_lost=True, detail=why)
        node_up = not pod.node or self._view.is_up(pod.node)
        if pod.deleted and task_id not in self._ending:
            return TaskView(task_id, alive=False, node_lost=True, detail=REMOVED)
        if pod.starting:
            stuck = self._exit_reasons.stuck(pod)
            alive = node_up and not stuck
            return TaskView(task_id, alive=alive, starting=alive, detail=stuck or "", node_lost=not node_up)
        reason = "" if pod.running else self._exit_reasons.reason(pod, node_up=node_up)
        if reason is None:  # It counts as alive until its log is fetched.
            return TaskView(task_id, alive=True, exit_code=pod.exit_code)
        return TaskView(
            task_id,
            alive=pod.running,
            exit_code=pod.exit_code,
            detail=reason,
            node_lost=pod.node_failed or not node_up,
        )

    # --- creation ---------------------------------------------------------------------------------

    async def _create(self, launch: TaskLaunch, node: KubernetesNode) -> None:
        kinds = self._slot_kinds().get(node.name, ())
        if max(launch.slots) >= len(kinds):
            raise TaskRefused(f"{node.name} has {len(kinds)} slots now, and the task was to have others")
        await self._gang_objects.make(launch)
        if self._data_agents is not None:
            await self._data_agents.ensure_claim(node.name)
        if launch.image:
            launch = replace(launch, image=by_own_name(launch.image, self.own_images))
        spec = task_spec(launch, node, kinds, self.task_settings, self._queue_marks(launch))
        self._view.put(await self._created(spec))

    async def _created(self, spec: Document) -> Document:
        """Create a task's pod. One that an earlier start made, with another token, is replaced."""
        name = str(spec["metadata"]["name"])
        while True:
            with suppress(ApiConflict):
                return await self._api.create(self._paths.pods, spec)
            with suppress(ApiMissing):
                found = await self._api.get(self._paths.pod(name))
                if _same_start(found, spec):
                    return found  # The answer to its creation was lost.
                await self._remove_pod(name)
            await asyncio.sleep(_AGAIN_S)

    def _queue_marks(self, launch: TaskLaunch) -> dict[str, str]:
        """Return the annotations by which a pod belongs to what another queue granted."""
        if self._queue is None:
            return {}
        return self._queue.pod_marks(launch.gang_id, launch.job_id, launch.node)

    async def _remove_pod(self, name: str) -> None:
        """Delete a pod; return when none of its processes runs. This waits for no node that is down."""
        await self._api.delete(self._paths.pod(name), max(1, round(self.stop_grace_s)))
        while (pod := self._view.pods.get(name)) is not None and not (pod.deleted and pod.over):
            event = self._view.next_event
            if pod.node and not self._view.is_up(pod.node):
                # Nobody can end it there. If its node comes back, the kubelet finds no pod, and ends it.
                await self._api.delete(self._paths.pod(name), grace_s=0)
            await event.wait()


def _same_start(found: Document, spec: Document) -> bool:
    """Tell whether a pod was made by the start that made this document."""
    marks = found["metadata"].get("annotations") or {}
    same = marks.get(SPEC_MARK) == spec["metadata"]["annotations"][SPEC_MARK]
    return same and not found["metadata"].get("deletionTimestamp")
