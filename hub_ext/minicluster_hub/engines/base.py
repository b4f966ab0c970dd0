"""What an engine must do: start tasks, end them, and say which are there.

The reconciler calls it; an engine never calls back but by `on_change`, which only wakes the loop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from traitlets import Float
from traitlets.config import LoggingConfigurable

from minicluster_hub.models import NodeView


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


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task that the engine knows. `detail`: the last words of one that ended by itself.

    starting: it is on its way (its node pulls the image, say), so its agent is silent for good reason.
    clean: nothing is left of it, no process and no container. A task whose agent died is neither
    alive nor clean until `Engine.end` has swept it.
    node_lost: it did not end by itself, its node went away.
    """

    task_id: int
    alive: bool
    starting: bool = False
    clean: bool = False
    exit_code: int | None = None
    detail: str = ""
    node_lost: bool = False


@dataclass(frozen=True, slots=True)
class LighthouseView:
    """The lighthouse of a gang with a fault-tolerant job. address: host:port, the same after a restart.

    alive: it runs, or is on its way. detail: the last words of one that ended.
    """

    gang_id: int
    address: str
    alive: bool
    detail: str = ""


class EngineError(Exception):
    """Base of what an engine raises; the message is for the job's owner."""


class TaskRefused(EngineError):
    """The engine cannot start this task, now or later."""


class LighthouseRefused(EngineError):
    """The engine cannot run a lighthouse for a fault-tolerant job."""


class ImageNotAllowed(EngineError):
    """A job asks for an image that this cluster does not run. `allowed`: those that it does."""

    def __init__(self, image: str, allowed: Sequence[str] = (), why: str = "") -> None:
        super().__init__(f"image {image}: {why or 'this cluster does not run it'}")
        listed = f", or give one of: {', '.join(allowed)}" if allowed else ""
        self.hint = f"Leave --image out for the cluster's own{listed}."


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

    def check_image(self, image: str | None) -> None:
        """Called before a job is taken. Raises ImageNotAllowed; None is the engine's own image."""
        if image is not None:
            raise ImageNotAllowed(image)

    @abstractmethod
    async def close(self) -> None:
        """Leave the tasks running and let go of them."""
