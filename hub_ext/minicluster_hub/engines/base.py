"""The interface of an engine: what starts tasks, ends them, and says which tasks and nodes there are.

A task is the agent of one attempt on one node: a group of processes, a container, a step of a batch job.

An engine is a subclass of `Engine`, found by its entry point:

    [project.entry-points."minicluster.engines"]
    slurm = "lab_slurm.engine:SlurmEngine"

`minicluster-hub --engine=slurm` then uses it. Options are traits with `.tag(config=True)`. What only some
engines can do is a capability (`minicluster_hub.engines.capabilities`): an engine offers it as an attribute,
which is None where it does not. tests/service/engines/conformance.py is the test suite that every engine has
to pass.
"""

from __future__ import annotations

import re
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from traitlets import Float
from traitlets.config import LoggingConfigurable

from minicluster.wire import Versions
from minicluster_hub.engines.capabilities import DataAgents, GpuHolds, Lighthouses, NodeGrants, TaskImages
from minicluster_hub.jobs.records import NodeView, TaskView


@dataclass(frozen=True, slots=True)
class TaskLaunch:
    """One task to start.

    job_id, attempt_id: what the task is started for; None when its gang has no job any more.
    token: the agent's secret. An engine hands it over as a file that only the task's user can read.
    image, shm_bytes: as in wire.JobSpec. epoch: the term of the leader that decided on the start.
    """

    task_id: int
    gang_id: int
    owner: str
    node: str
    slots: tuple[int, ...]
    token: str
    service_urls: tuple[str, ...]
    job_id: int | None = None
    attempt_id: int | None = None
    image: str | None = None
    shm_bytes: int | None = None
    epoch: int | None = None


class EngineError(Exception):
    """Base of what an engine raises. The job's owner reads the message."""


class TaskRefused(EngineError):
    """The engine cannot start this task, now or later."""


class LighthouseRefused(EngineError):
    """The engine cannot run a lighthouse for a fault-tolerant job."""


class GpusRefused(EngineError):
    """The engine cannot hold GPUs for a notebook server."""


class ImageUnknown(EngineError):
    """The engine cannot tell which image a name stands for now."""


class _EngineMeta(ABCMeta, type(LoggingConfigurable)):
    """Python refuses to make an engine that lacks an abstract method."""


class Engine(LoggingConfigurable, metaclass=_EngineMeta):
    """Base of the engines.

    The job service makes one engine object, with itself as `parent`. Making it connects to nothing: a service
    that does not lead makes one, too, and never opens it. The order of calls is: `open` (again until it
    succeeds); then the others, in any order; at last `close`, also without an `open`.

    All methods are called in the service's event loop. Those that are not coroutines are called several times
    a second and must answer from memory. Coroutines for different tasks run at the same time. For one task,
    one call at a time is under way. Any of them may be cancelled, when the service ends: what it has done by
    then is found by the next `open`. The service may also be killed; so whatever an engine starts carries its
    task's id where the engine finds it again (a label, a variable, a job's name), and nothing else has to be
    remembered.

    Errors: EngineError is for what can go wrong outside of the engine. Any other exception counts as a
    defect: the step is tried again, less and less often, and the job is ended if that never helps.

    Slots need not be the engine's own. An engine over a batch system offers `node_grants`. It lists the nodes
    that the batch system may grant, as `closed` until they are granted; asks for them when jobs wait; and
    reports each as open from its grant to its end. The service places tasks on them as on any node. When a
    grant ends, its tasks are `node_lost`, so that their jobs are queued again. Waiting in the batch system's
    queue is not part of `start`: a job whose tasks are on their way for an hour fails.
    """

    settle_s = Float(
        0.0, help="Seconds for which a job that lost a node gets no other one in its place."
    ).tag(config=True)

    lighthouses: Lighthouses | None = None
    """Runs lighthouses; without them a fault-tolerant job fails with a message."""
    gpu_holds: GpuHolds | None = None
    """Holds the GPUs of notebook servers; None where a server has its GPUs in another way, until it ends."""
    task_images: TaskImages | None = None
    """The images that tasks run in; None where tasks run in no image."""
    data_agents: DataAgents | None = None
    """Runs the nodes' data set agents; without them a job with data sets fails, since they do not come."""
    node_grants: NodeGrants | None = None
    """Asks a batch system for nodes; None where all nodes are there already."""

    def on_change(self) -> None:
        """Wake the reconciler: a task or a node has changed.

        The engine calls it, in the event loop, for all that happens by itself: a task that ends, a node that
        comes or goes. The reconciler puts its own function in its place before `open`. It returns at once.
        """

    @abstractmethod
    async def open(self) -> None:
        """Find the nodes, and the tasks that run already: the service may have been killed.

        The reconciler calls it once its service leads, before all else. When it returns, `nodes` and `tasks`
        are complete: a task that is not there is started again. Raises EngineError when what it stands on
        does not answer; then it is called again each second, on the same object.
        """

    @abstractmethod
    async def start(self, launch: TaskLaunch) -> None:
        """Start a task on the node of its launch, on these slots of it.

        The reconciler calls it after the task's slots are leased and its token's hash is stored; all tasks of
        a gang at the same time. Starting a task that is there already does nothing. When it returns, `tasks`
        has the task; it may still be on its way (`TaskView.starting`).

        The token must not be in an environment or a command line: other users of a machine read both.

        Raises TaskRefused, or another EngineError, if the task will never start: the job fails with its
        message. So what passes (a daemon that is away) is waited for here. What is half made then, `end`
        removes.
        """

    @abstractmethod
    async def end(self, task_id: int) -> None:
        """Kill all processes of a task, and remove what was made for it.

        The reconciler calls it for each task of a gang that is to end, also if its agent ended by itself, and
        for tasks that no row of the store knows. It returns when nothing of the task runs any more, except on
        a node that is down: that is not waited for. From then on the task's view is `clean`, which frees its
        slots. A task that is not known is ended already. Raises EngineError; then it is called again after a
        second.
        """

    @abstractmethod
    def tasks(self) -> Mapping[int, TaskView]:
        """Return all tasks known now by their ids, the ended ones until `forget`.

        The reconciler calls it at each tick, and ends every task that is in no row of the store. It takes a
        task that is not alive for lost. Nobody knows of one on a node that is down: it is `node_lost`, alive
        or not. Its `detail` (the last lines that the agent printed, see `readable`) is shown to the job's
        owner; "" where an engine does not have them.
        """

    @abstractmethod
    def forget(self, task_id: int) -> None:
        """Drop what is kept of an ended task (a scratch folder, the reason of its end).

        The reconciler calls it once it has stored the end. Later `tasks` does not have the task.
        """

    @abstractmethod
    def nodes(self) -> tuple[NodeView, ...]:
        """Return all nodes, those too that are down or take nothing new.

        The reconciler, the planner and the pages call it. A node keeps its name, and the number and order of
        its slots, for as long as a task of it is there: leases refer to both. A node may come or go at any
        time. One that is down, or not granted yet, stays in the list: jobs larger than the list are refused,
        not queued.
        """

    def environment(self) -> Versions | None:
        """Return the versions that ranks have where tasks run in no image; None where that is their image's
        affair.

        The API calls it, so that notebooks know what differs from their own.
        """
        return None

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything. Tasks, lighthouses, held GPUs and data set agents stay as they are."""


_UNREADABLE = re.compile(r"[^\x09\x0a\x20-\x7e\u00a0-\uffff]")


def readable(text: str) -> str:
    """Return what a process printed without control characters: it is shown to people."""
    return _UNREADABLE.sub("", text).strip()
