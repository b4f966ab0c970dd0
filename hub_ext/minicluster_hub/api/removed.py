"""What is said of a job whose cell, result, snapshots and output were removed."""

from __future__ import annotations

from minicluster_hub.storage.artifacts import DAY_S
from minicluster_hub.web.errors import ApiError
from minicluster_hub.jobs.records import JobRecord


def check_kept(record: JobRecord, what: str) -> None:
    """Raises ApiError (410) if what a job left was removed. what: "its result", say."""
    if record.removed_at is None:
        return
    days = (record.removed_at - (record.ended_at or record.removed_at)) / DAY_S
    message = f"{what} of job {record.id} was removed {days:.0f} days after the job's end"
    raise ApiError(410, "removed", message, "run the cell again, or ask an admin to have them kept longer")
