"""What only some engines can do: one protocol for each capability.

An engine offers a capability as an attribute, which is None otherwise (`engine.lighthouses is None`). The
rules of `engines.base.Engine` on the event loop, errors and restarts hold here, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from minicluster_hub.engines.node_tokens import NodeTokens
from minicluster_hub.jobs.records import LighthouseView, ServerRecord


class Lighthouses(Protocol):
    """Runs the lighthouse of each fault-tolerant job's gang: a process of torchft where the ranks meet."""

    async def start(self, gang_id: int) -> None:
        """Start a gang's lighthouse, at its former address if it had one.

        The reconciler calls it when a gang with a fault-tolerant job has no live lighthouse. A live one is
        left alone. Raises LighthouseRefused, or another EngineError: the job fails with the message.
        """
        ...

    async def end(self, gang_id: int) -> None:
        """End a gang's lighthouse and forget its address. For an unknown one it does nothing.

        The reconciler calls it when the job is over or no longer bound to the gang. Raises EngineError; it is
        then called again after a second.
        """
        ...

    def views(self) -> Mapping[int, LighthouseView]:
        """Return all lighthouses by gang; those that died stay until `end`. Called at each tick."""
        ...


class GpuHolds(Protocol):
    """Holds GPUs of a node for a notebook server, so that they can be reclaimed while the server runs."""

    async def hold(self, server: ServerRecord) -> tuple[str, ...]:
        """Hold as many GPUs as the server has slots; return their ids. Called again, it returns the same ids.

        Called after the server's slots are leased, before its spawner starts it. Raises GpusRefused: the
        spawn page then shows the message.
        """
        ...

    async def release(self, owner: str, name: str) -> None:
        """Release a server's GPUs; return when others can use them. For an unknown server it does nothing.

        Called when the server has ended or left its GPUs idle for too long. Raises EngineError; it is then
        called again.
        """
        ...

    def all(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Return the ids of the held GPUs, by the servers' owners and names."""
        ...


class GpuSharing(Protocol):
    """Runs, for each shared GPU, the process that limits the memory of those who share it."""

    def keep(self, shared: Collection[tuple[str, int]]) -> None:
        """End the processes of other GPUs, in the background.

        shared: the nodes and slots of which somebody has a share now. Called at each tick, so it has to be
        cheap. `Engine.start` and `GpuHolds.hold` start missing processes.
        """
        ...


class TaskImages(Protocol):
    """The container images that tasks can run in."""

    def own(self) -> tuple[str, ...]:
        """Return the references that the engine's options offer; jobs that name no image use the first."""
        ...

    def on_nodes(self) -> Mapping[str, Collection[str]]:
        """Return, by reference, the nodes that are known to have an image."""
        ...

    async def digest(self, reference: str) -> str:
        """Return the digest that a tag has now. Called when a tag is offered for the first time.

        Raises ImageUnknown, or another EngineError; it is then called again after a while.
        """
        ...


class DataAgents(Protocol):
    """Runs an agent on each node that fetches data sets (minicluster.runtime.node.data_agent)."""

    def ensure_running(self, service_urls: tuple[str, ...], tokens: NodeTokens, *, needed: bool) -> None:
        """Start missing agents in the background. Called at each tick, so it has to be cheap.

        service_urls: of the job services, of which one leads. needed: a job reads a data set. tokens: makes
        the secret of each agent, which is valid for the agent's nodes only.
        """
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Slots of one node, by their numbers."""

    node: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QueueRequest:
    """What a waiting job asks of the other queue: one request for all tasks that its gang lacks.

    attempt: how many attempts the job has had. one_per_node: each replica gets another node.
    without: nodes where the gang has tasks already. time_limit_s: the job's own limit; None: it has none.
    """

    job_id: int
    owner: str
    attempt: int
    min_replicas: int
    max_replicas: int
    slots_per_replica: int
    one_per_node: bool = True
    without: tuple[str, ...] = ()
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class PlacedGang:
    """A gang whose tasks hold slots. job_id: its present job; None: it is warm, or ends.

    attempt: the number in the request for that job's newest attempt. tasks: by id, where each one is.
    """

    gang_id: int
    job_id: int | None
    attempt: int
    tasks: Mapping[int, Place]


@dataclass(frozen=True, slots=True)
class QueueWait:
    """Why the other queue lets a job wait: the end of a sentence about the job, with that queue's own word.

    expected_start_at: the other queue's estimate. for_slots: whether it waits for slots, so that warm gangs
    are given back for it.
    """

    reason: str
    expected_start_at: float | None = None
    for_slots: bool = False


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """granted: by job, the places of its request. waits: by job, why it waits. Each request is in one.

    ends_at: by gang, when the other queue will take its slots back; a gang without an entry has no limit.
    """

    granted: Mapping[int, tuple[Place, ...]]
    waits: Mapping[int, QueueWait]
    ends_at: Mapping[int, float] = field(default_factory=dict[int, float])


class BatchQueue(Protocol):
    """A queue of others that owns the slots, say Slurm: it decides which job gets which slots, and when."""

    name: str
    """As people call it."""

    def request(self, waiting: Sequence[QueueRequest], placed: Sequence[PlacedGang]) -> QueueAnswer:
        """Take all requests of the moment, and all gangs with slots; return what is known of the requests.

        Called at each tick, so it answers from memory. In the background the engine sends each request once,
        and withdraws those that are not in `waiting` any more. It gives back what was granted and belongs
        neither to a request nor to a placed gang. It calls `on_change` when an answer changes. A granted
        request is granted at each call until its job has started. A request that differs from the job's last
        one replaces it. After a restart the engine finds its requests by their names.
        """
        ...


class LeaderLease(Protocol):
    """A lease of the batch system, by which one of several job services acts, and the others stand by.

    It is for job services on SQLite, which cannot tell. On PostgreSQL the database decides, and refuses what
    a former leader still writes. The coroutines raise EngineError if the system does not answer.

    lease_s: how long a service leads after a renewal.
    """

    lease_s: float

    async def take(self) -> bool:
        """Take the lease unless another service has it; return whether this one has it."""
        ...

    async def renew(self) -> bool:
        """Renew the lease; return whether this service still has it."""
        ...

    async def read(self) -> tuple[str, float]:
        """Return the holder's URL, "" if there is none, and for how many seconds it was not renewed."""
        ...

    async def close(self) -> None:
        """Release the lease, so that another service takes over at once."""
        ...
