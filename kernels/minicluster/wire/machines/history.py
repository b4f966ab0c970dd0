"""What the service tells of machines: what they do, what they did, who held their slots."""

from __future__ import annotations

from minicluster.wire.base import Message
from minicluster.wire.limits import Name
from minicluster.wire.machines.readings import MachineReading

MOST_HISTORY_POINTS = 2000
HISTORY_FIELDS = 32
"""Of one request."""
TIMELINE_BARS = 5000


class Machine(Message):
    """A machine now. nodes: the scheduler's nodes that it is. at: of the reading, in seconds since the epoch.

    reading: the newest; None: none yet, or only an old one. fields: of which there is a history.
    """

    name: str
    nodes: tuple[str, ...]
    at: float | None = None
    reading: MachineReading | None = None
    fields: tuple[str, ...] = ()


class MachineList(Message):
    """GET api/machines. now: the service's clock."""

    machines: tuple[Machine, ...]
    now: float


class FieldHistory(Message):
    """mean, high: the mean and the maximum in each interval; None: nothing was read in it."""

    name: Name
    mean: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()


class History(Message):
    """GET api/machines/NAME/history. at: the beginnings of intervals of `step_s` seconds, since the epoch."""

    name: str
    step_s: float
    at: tuple[float, ...] = ()
    fields: tuple[FieldHistory, ...] = ()


class RankHistory(Message):
    """The readings of one rank; see RankReading for the fields."""

    rank: int
    step_s: float
    at: tuple[float, ...] = ()
    fields: tuple[FieldHistory, ...] = ()


class RunReadings(Message):
    """GET api/runs/ID/readings: of each rank, on the run's time axis, the lowest rank first."""

    run: int
    started_at: float | None = None
    ranks: tuple[RankHistory, ...] = ()


class TimelineBar(Message):
    """Slots of a node that somebody held. lanes: the rows of that node in which the bar stands.

    ended_at: None: still held. job_id, server: what held them; name: of the asker's own job only.
    """

    node: str
    lanes: tuple[int, ...]
    owner: str
    began_at: float
    ended_at: float | None = None
    job_id: int | None = None
    server: bool = False
    name: str = ""


class TimelineWait(Message):
    """A job that waits, in the order of the queue. slots: the least that it needs. reason: of one's own."""

    job_id: int
    owner: str
    position: int
    slots: float
    name: str = ""
    reason: str = ""
    expected_start_at: float | None = None


class TimelineNode(Message):
    name: str
    kind: str
    slots: int
    up: bool = True


class Timeline(Message):
    """GET api/timeline: who held which slots, and what waits. cut: bars beyond TIMELINE_BARS, left out."""

    now: float
    low: float
    high: float
    nodes: tuple[TimelineNode, ...] = ()
    bars: tuple[TimelineBar, ...] = ()
    waiting: tuple[TimelineWait, ...] = ()
    cut: int = 0
