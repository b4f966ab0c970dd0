"""The interface of an engine, which starts and ends tasks, and reports which tasks and nodes exist.

A task is the agent of one attempt on one node: a group of processes, a container, a step of a batch job.

An engine is a subclass of `Engine`, found by its entry point:

    [project.entry-points."minicluster.engines"]
    slurm = "lab_slurm.engine:SlurmEngine"

`minicluster-hub --engine=slurm` then uses it. Options are traits with `.tag(config=True)`. What only some
engines can do is a capability (`minicluster_hub.engines.capabilities`): an attribute of the engine, which is
None if the engine lacks the capability. tests/service/engines/conformance.py is the test suite that every
engine has to pass.
"""

from __future__ import annotations

import re
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from traitlets import Float
from traitlets.config import LoggingConfigurable

from minicluster.wire import Versions
from minicluster_hub.engines.capabilities import (
    DataAgents,
    GpuHolds,
    GpuSharing,
    Lighthouses,
    NodeGrants,
    TaskImages,
)
from minicluster_hub.jobs.records import NodeView, TaskView


@dataclass(frozen=True, slots=True)
class TaskLaunch:
    """One task to start.

    job_id, attempt_id: what the task is started for; None if its gang no longer has a job.
    token: the agent's secret. The engine passes it in a file that only the task's user can read.
    service_urls: of the job services, of which one leads.
    slots: of the node. gpu_share: the share of its one slot that the task has; None: all of its slots.
    serves: the job service itself has to reach the ranks: they answer requests to a model.
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
    gpu_share: float | None = None
    serves: bool = False


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
    """With it, Python refuses to instantiate an engine that lacks an abstract method."""


class Engine(LoggingConfigurable, metaclass=_EngineMeta):
    """Base of the engines.

    The job service makes one engine object, with itself as `parent`. The constructor must not connect to
    anything: a service that does not lead makes an engine, too, and never opens it. The order of calls is:
    `open` (repeated until it succeeds); then the other methods, in any order; at last `close`, also without
    an `open`.

    All methods are called in the service's event loop. Those that are not coroutines are called several times
    a second and must answer from memory. Coroutines for different tasks run at the same time. For one task,
    one call at a time is under way. A coroutine may be cancelled when the service ends. The next `open` must
    then find what it has done. The service may also be killed. So everything that an engine starts carries
    its task's id where the engine finds it again (a label, a variable, a job's name). Nothing else may be
    needed.

    Errors: EngineError is for failures outside of the engine. Any other exception counts as a defect: the
    operation is tried again, less and less often, and after several failures the job is ended.

    Slots need not be the engine's own. An engine over a batch system offers `node_grants`. It lists the nodes
    that the batch system may grant, as `closed` until they are granted. It requests them when jobs wait, and
    reports each as open while it is granted. The service places tasks on them as on any node. When a
    grant ends, its tasks are `node_lost`, so that their jobs are queued again. Waiting in the batch system's
    queue is not part of `start`: a job whose tasks take an hour to start fails.
    """

    settle_s = Float(
        0.0, help="Seconds for which a job that lost a node gets no other node in its place."
    ).tag(config=True)

    lighthouses: Lighthouses | None = None
    """Runs lighthouses; without them a fault-tolerant job fails with a message."""
    gpu_holds: GpuHolds | None = None
    """Holds the GPUs of notebook servers; None if a server has its GPUs in another way, until it ends."""
    task_images: TaskImages | None = None
    """The images that tasks run in; None if tasks run without images."""
    data_agents: DataAgents | None = None
    """Runs the nodes' data set agents; without them a job that reads a data set fails."""
    own_nodes: tuple[str, ...] = ()
    """Nodes that are the job service's own machine: it reads their use itself, agents that of others."""
    gpu_sharing: GpuSharing | None = None
    """Runs what two tasks or servers on one GPU need; without it, all nodes have `NodeView.no_gpu_share`."""
    node_grants: NodeGrants | None = None
    """Asks a batch system for nodes; None if all nodes are there already."""

    def on_change(self) -> None:
        """Wake the reconciler: a task or a node has changed.

        The engine calls it, in the event loop, when something happens by itself: a task ends, a node appears
        or disappears. The reconciler replaces it by its own function before `open`. It returns at once.
        """

    @abstractmethod
    async def open(self) -> None:
        """Find the nodes, and the tasks that run already: the service may have been killed.

        The reconciler calls it first, once its service leads. When it returns, `nodes` and `tasks` must be
        complete: a task that is missing there is started again. Raises EngineError if the underlying system
        does not answer. It is then called again each second, on the same object.
        """

    @abstractmethod
    async def start(self, launch: TaskLaunch) -> None:
        """Start a task on the node of its launch, on these slots of it.

        The reconciler calls it after the task's slots are leased and its token's hash is stored, for all
        tasks of a gang at the same time. A task that exists already is not started again. When the call
        returns, `tasks` has the task, which may still be starting (`TaskView.starting`).

        The token must not be in an environment or a command line: other users of a machine read both.

        Raises TaskRefused, or another EngineError, if the task will never start: the job fails with the
        message. So a temporary failure (a daemon that does not answer) has to be waited out here. `end`
        removes what an unfinished start has made.
        """

    @abstractmethod
    async def end(self, task_id: int) -> None:
        """Kill all processes of a task, and remove what was made for it.

        The reconciler calls it for each task of a gang that must end, also if its agent ended by itself, and
        for tasks without a row in the store. It returns when no process of the task runs any more. It does
        not wait for a node that is down. From then on the task's view is `clean`, which frees its slots. For
        an unknown task it does nothing. Raises EngineError; it is then called again after a second.
        """

    @abstractmethod
    def tasks(self) -> Mapping[int, TaskView]:
        """Return all known tasks by their ids; those that ended stay until `forget`.

        The reconciler calls it at each tick, and ends every task without a row in the store. A task that is
        not alive counts as lost. A task on a node that is down is `node_lost`, since nobody knows whether it
        runs. `detail` (the last lines that the agent printed, see `readable`) is shown to the job's owner; ""
        if an engine does not have them.
        """

    @abstractmethod
    def forget(self, task_id: int) -> None:
        """Delete what is left of an ended task (a scratch folder, the reason of its end).

        The reconciler calls it once it has stored the end. After that, `tasks` no longer has the task.
        """

    @abstractmethod
    def nodes(self) -> tuple[NodeView, ...]:
        """Return all nodes, also those that are down or take nothing new.

        The reconciler, the planner and the pages call it. A node keeps its name, and the number and order of
        its slots, as long as it has a task: leases refer to both. A node may appear or disappear at any time.
        A node that is down, or not granted yet, stays in the list: a job that needs more than all listed
        nodes is refused, not queued.
        """

    def task_address(self, task_id: int, node: str) -> str:
        """Return where the job service reaches the ports of a task of this node.

        The API calls it for the replicas of models. What a task itself says of its address is not trusted:
        requests would go wherever its owner likes. By default it is the node's address; "" if there is none.
        """
        return next((one.address for one in self.nodes() if one.name == node), "")

    def environment(self) -> Versions | None:
        """Return the versions of packages that ranks have; None if these depend on the tasks' image.

        The API calls it, so that notebooks can tell what differs from their own versions.
        """
        return None

    @abstractmethod
    async def close(self) -> None:
        """Close all connections. Tasks, lighthouses, held GPUs and data set agents stay as they are."""


_UNREADABLE = re.compile(r"[^\x09\x0a\x20-\x7e\u00a0-\uffff]")


def readable(text: str) -> str:
    """Return a process's output without control characters, to be shown to people."""
    return _UNREADABLE.sub("", text).strip()
