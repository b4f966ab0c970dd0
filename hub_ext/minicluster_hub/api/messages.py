"""Messages that only the service's own pages read."""

from __future__ import annotations

from minicluster.wire import Message
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.storage.retention import DAY_S
from minicluster_hub.web.errors import ApiError


class HistoryLine(Message):
    id: int
    at: float
    kind: str
    text: str


class JobHistory(Message):
    """A page of a job's events in order. more: the next page begins `after` the last of these."""

    lines: tuple[HistoryLine, ...]
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


# What is said of a job whose cell, result, snapshots and output were removed.


def check_kept(record: JobRecord, what: str) -> None:
    """Raises ApiError (410) if what a job left was removed. what: "its result", say."""
    if record.removed_at is None:
        return
    days = (record.removed_at - (record.ended_at or record.removed_at)) / DAY_S
    message = f"{what} of job {record.id} was removed {days:.0f} days after the job's end"
    raise ApiError(410, "removed", message, "run the cell again, or ask an admin to have them kept longer")
