"""What the reconciler last saw, for those who ask: orders of tasks, jobs and nodes as people see them.

The reconciler shows each new look; handlers read, and listen to its bells instead of asking again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from minicluster.wire import Job, JobState, NodeList, TaskOrders
from minicluster_hub.bell import NODES, Bell
from minicluster_hub.engines.base import Engine
from minicluster_hub.models import JobRecord, NodeView, TaskRecord, World
from minicluster_hub.orders import TaskOver, orders_for
from minicluster_hub.scenes import Scene
from minicluster_hub.scheduling.reasons import Wait
from minicluster_hub.store import Store
from minicluster_hub.views import job_message, node_list


class Board:
    """`changes` rings a job's id, or NODES, when what people see of it changed.

    `looked` is set at the first look: before it, living tasks would be told that they are over.
    """

    def __init__(self, store: Store, engine: Engine) -> None:
        self.changes = Bell()
        self.looked = asyncio.Event()
        self.world = World((), (), (), (), ())
        self.scenes: dict[int, Scene] = {}
        self._store = store
        self._engine = engine
        self._waits: dict[int, Wait] = {}
        self._versions: dict[int, str] = {}
        self._orders_bell = Bell()

    # --- shown by the reconciler --------------------------------------------------------------

    def show(self, world: World, scenes: Iterable[Scene]) -> None:
        """Take a new look at the world."""
        self.world = world
        self.scenes = {scene.gang.id: scene for scene in scenes}
        self.looked.set()

    def show_waits(self, waits: Iterable[Wait]) -> None:
        """Take the reasons of the waiting jobs, and ring for those that changed."""
        before, self._waits = self._waits, {wait.job_id: wait for wait in waits}
        for job_id in self._waits.keys() | before.keys():
            if self._waits.get(job_id) != before.get(job_id):
                self.changes.ring(job_id)

    def ring(self, job_id: int | None = None) -> None:
        """Say that a job changed, and with it who holds the nodes' slots."""
        if job_id is not None:
            self.changes.ring(job_id)
        self.changes.ring(NODES)

    def ring_orders(self) -> None:
        """Wake the agents whose orders changed since the last call."""
        before, self._versions = self._versions, {task.id: self._version(task) for task in self.world.tasks}
        for task_id in self._versions.keys() | before.keys():
            if self._versions.get(task_id) != before.get(task_id):
                self._orders_bell.ring(task_id)

    def _version(self, task: TaskRecord) -> str:
        try:
            return self.orders(task).version
        except TaskOver:
            return "over"

    # --- asked by handlers --------------------------------------------------------------------

    def orders(self, task: TaskRecord) -> TaskOrders:
        """Return what the task should be doing now. Raises TaskOver."""
        scene = self.scenes.get(task.gang_id)
        if scene is None:
            raise TaskOver(f"task {task.id} is over")
        return orders_for(task, scene)

    async def orders_changed(self, task_id: int, timeout_s: float) -> None:
        """Return when the task's orders may have changed, or the time is over."""
        async with self._orders_bell.listen(task_id) as listener:
            await listener.wait(timeout_s)

    def check_image(self, image: str | None) -> None:
        """Raise ImageNotAllowed if the engine runs no tasks in this image."""
        self._engine.check_image(image)

    def node_views(self) -> tuple[NodeView, ...]:
        return self._engine.nodes()

    def nodes(self) -> NodeList:
        """Return all nodes with who holds their slots."""
        return node_list(self._engine.nodes(), self.world)

    def job(self, record: JobRecord) -> Job:
        """Return the job as its owner sees it."""
        return job_message(record, self._nodes_of(record), self._waits.get(record.id))

    def _nodes_of(self, record: JobRecord) -> tuple[str, ...]:
        if record.state is JobState.QUEUED or record.attempt_id is None:
            return ()
        scene = self.scenes.get(record.gang_id or 0)
        if scene is not None and not record.state.terminal:
            return tuple(task.node for task in scene.tasks)
        return self._store.attempt_nodes(record.attempt_id)
