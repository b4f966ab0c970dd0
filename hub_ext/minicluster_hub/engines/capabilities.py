"""What only some engines can do: a protocol for each, which an engine offers as an attribute or does not.

The service asks `engine.lighthouses is None` before it calls. What `engines.base.Engine` says of the event
loop, of errors and of what has to be found again holds here, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from minicluster_hub.engines.node_tokens import NodeTokens
from minicluster_hub.jobs.records import JobRecord, LighthouseView, ServerRecord


class Lighthouses(Protocol):
    """Runs the lighthouse of each fault-tolerant job's gang: a process of torchft where the ranks meet."""

    async def start(self, gang_id: int) -> None:
        """Start a gang's lighthouse, at the address that it had before if there was one.

        The reconciler calls it when a gang with a fault-tolerant job has none that is alive. One that is
        alive stays. Raises LighthouseRefused, or another EngineError: the job fails with its message.
        """
        ...

    async def end(self, gang_id: int) -> None:
        """End a gang's lighthouse and forget its address. One that is not known is ended already.

        The reconciler calls it when the job is over or no longer the gang's. Raises EngineError; then it is
        called again after a second.
        """
        ...

    def views(self) -> Mapping[int, LighthouseView]:
        """Return all lighthouses by gang, those that died until `end`. Called at each tick."""
        ...


class GpuHolds(Protocol):
    """Holds GPUs of a node for a notebook server, so that they can be taken back while the server runs on."""

    async def hold(self, server: ServerRecord) -> tuple[str, ...]:
        """Hold as many GPUs as the server has slots; return their ids, the same ones if they are held
        already.

        Called after the server's slots are leased, before its spawner starts it. Raises GpusRefused: then the
        spawn page shows the message.
        """
        ...

    async def release(self, owner: str, name: str) -> None:
        """Give a server's GPUs back; return when others can have them. Unknown ones are released already.

        Called when the server has ended or left them idle for too long. Raises EngineError; then it is called
        again.
        """
        ...

    def all(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Return the ids of the GPUs that are held, by the servers' owners and names."""
        ...


class TaskImages(Protocol):
    """The container images that tasks can run in."""

    def own(self) -> tuple[str, ...]:
        """Return the references that the engine's options offer; the first is that of a job without one."""
        ...

    def on_nodes(self) -> Mapping[str, Collection[str]]:
        """Return, by reference, the nodes that have an image, as far as that was seen."""
        ...

    async def digest(self, reference: str) -> str:
        """Return the digest that a tag has now. Called when a tag is offered for the first time.

        Raises ImageUnknown, or another EngineError; then it is called again after a while.
        """
        ...


class DataAgents(Protocol):
    """Runs an agent on each node that fetches data sets (minicluster.runtime.node.data_agent)."""

    def ensure_running(self, service_urls: tuple[str, ...], tokens: NodeTokens, *, wanted: bool) -> None:
        """See to it, in the background, that the agents are there. Called at each tick, so it has to cost
        nothing.

        wanted: a job reads a data set. tokens: makes the secret of each agent, which speaks for its nodes
        only.
        """
        ...


class NodeGrants(Protocol):
    """Asks a batch system, which queues by itself, for the nodes that waiting jobs need."""

    def request(self, waiting: Sequence[JobRecord]) -> None:
        """Take note of the jobs that wait for slots; those that a quota or a reservation holds back are not
        there.

        Called at each tick. The engine submits what is missing in the background, once for each job,
        withdraws what no job waits for any more, and calls `on_change` when nodes were granted. Which job
        then gets them is decided by the service's policy.
        """
        ...
