"""Messages that only the service's own pages read."""

from __future__ import annotations

from minicluster.wire import Message


class StoryLine(Message):
    id: int
    at: float
    kind: str
    text: str


class JobStory(Message):
    """A page of a job's events in order. more: the next page begins `after` the last of these."""

    lines: tuple[StoryLine, ...]
    more: bool = False


class NodeAddresses(Message):
    """Of all machines of the cluster, on all networks that these have."""

    addresses: tuple[str, ...]


class Health(Message):
    """Whether the service can work; what is wrong stands in its log.

    set_aside: how many things fail again and again that were to be done for one job, gang or task.
    """

    ok: bool
    wire_version: int
    set_aside: int = 0
