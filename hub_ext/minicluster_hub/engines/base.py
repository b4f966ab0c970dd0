"""What an engine must do: start tasks, end them, and say which are there.

The reconciler calls it; an engine never calls back but by `on_change`, which only wakes the loop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from traitlets import Float
from traitlets.config import LoggingConfigurable

from minicluster.wire import Versions
from minicluster_hub.engines.node_tokens import NodeTokens
from minicluster_hub.jobs.records import LighthouseView, NodeView, ServerRecord, TaskView


@dataclass(frozen=True, slots=True)
class TaskLaunch:
    """One task as data. `token` is the agent's secret: an engine hands it over as a file.

    job_id, attempt_id: for what the task is started; None when its gang has no job any more.
    image, shm_bytes: as in wire.JobSpec. epoch: whose lead the decision was, where several services share
    a database.
    """

    task_id: int
    gang_id: int
    owner: str
    node: str
    slots: tuple[int, ...]
    token: str
    service_url: str
    job_id: int | None = None
    attempt_id: int | None = None
    image: str | None = None
    shm_bytes: int | None = None
    epoch: int | None = None


class EngineError(Exception):
    """Base of what an engine raises; the message is for the job's owner."""


class TaskRefused(EngineError):
    """The engine cannot start this task, now or later."""


class LighthouseRefused(EngineError):
    """The engine cannot run a lighthouse for a fault-tolerant job."""


class GpusRefused(EngineError):
    """The engine cannot have GPUs for a notebook server."""


class ImageUnknown(EngineError):
    """The engine cannot tell which image a name stands for now."""


class Engine(LoggingConfigurable):
    """Base of the engines."""

    on_change: Callable[[], None]
    """Set by the reconciler before `open`; called when a task or a node changes."""

    settle_s = Float(
        0.0, help="Seconds for which a job that lost a node gets no other one in its place."
    ).tag(config=True)

    @abstractmethod
    async def open(self) -> None:
        """Find the tasks that run already (the service may have been killed) and the nodes."""

    @abstractmethod
    async def start(self, launch: TaskLaunch) -> None:
        """Start a task. Starting one that is there already does nothing. Raises TaskRefused."""

    @abstractmethod
    async def end(self, task_id: int) -> None:
        """Kill all processes of a task. Returns when none is left; unknown ids are ended already."""

    @abstractmethod
    def tasks(self) -> Mapping[int, TaskView]:
        """Return all tasks known now, the ended ones until `forget`."""

    @abstractmethod
    def forget(self, task_id: int) -> None:
        """Drop what is kept of an ended task (scratch folder, exit reason)."""

    @abstractmethod
    def nodes(self) -> tuple[NodeView, ...]:
        """Return all nodes, those that are down too."""

    async def start_lighthouse(self, gang_id: int) -> None:
        """Start a gang's lighthouse, again at its former address. One that is alive stays.

        The ranks' orders carry the address from `lighthouses`. Raises LighthouseRefused.
        """
        raise LighthouseRefused("this cluster's engine runs no fault-tolerant jobs")

    async def end_lighthouse(self, gang_id: int) -> None:
        """End a gang's lighthouse; unknown ids are ended already. Called after the gang's last task."""

    def lighthouses(self) -> Mapping[int, LighthouseView]:
        """Return all lighthouses known now, by gang, those that died until `end_lighthouse`."""
        return {}

    async def hold_gpus(self, server: ServerRecord) -> tuple[str, ...]:
        """Have a notebook server's GPUs, as many as it has slots; return their ids, again the same ones.

        None where a server has its GPUs in another way, and so until it ends. Raises GpusRefused.
        """
        return ()

    async def release_gpus(self, owner: str, name: str) -> None:
        """Give a server's GPUs to others, while it may run on; unknown ones are released already."""

    def held_gpus(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Return the ids of the GPUs that are held for servers, by their owners and names."""
        return {}

    def own_images(self) -> tuple[str, ...]:
        """Return the references of the images that the settings offer: the first is that of a job
        without one. Empty: tasks run in no image.
        """
        return ()

    def images_there(self) -> Mapping[str, Collection[str]]:
        """Return, by reference, the nodes on which something was seen to run in an image: they have it."""
        return {}

    def environment(self) -> Versions | None:
        """Return what ranks have where tasks run in no image; None where that is their image's affair."""
        return None

    async def image_digest(self, reference: str) -> str:
        """Return the digest that a tag has now. Raises ImageUnknown, or another EngineError."""
        raise ImageUnknown(f"this engine cannot look up {reference}")

    def keep_data(self, service_url: str, tokens: NodeTokens, *, wanted: bool) -> None:
        """Have a data set agent (minicluster.runtime.node.data_agent) on each node. Called again and again.

        wanted: a job reads a data set. tokens: what each agent speaks for its node by.
        """

    @abstractmethod
    async def close(self) -> None:
        """Leave the tasks running and let go of them."""
