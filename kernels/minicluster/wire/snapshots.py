"""Snapshots of a job: what an agent brings into the job's storage, and what of it is there."""

from __future__ import annotations

from pydantic import Field

from minicluster.wire.base import Count, Message
from minicluster.wire.jobs import BlobInfo


class SnapshotRef(Message):
    """A complete snapshot in the job's storage. attempt: the id of the attempt that made it."""

    step: int = Field(ge=0, le=2**62)
    attempt: Count
    parts: tuple[BlobInfo, ...] = Field(min_length=1)


class SnapshotReport(Message):
    """A part that the agent has brought into the job's storage. keep: how many snapshots the job wants."""

    step: int = Field(ge=0, le=2**62)
    attempt: Count
    blob: BlobInfo
    part: int = Field(default=0, ge=0, le=9_999)
    parts: int = Field(default=1, ge=1, le=10_000)
    keep: int = Field(default=2, ge=1, le=10_000)


class Snapshot(Message):
    """A complete snapshot as the job's owner sees it. attempt: the attempt's number in its job."""

    step: int
    attempt: int
    size_bytes: int
    created_at: float


class SnapshotList(Message):
    """GET api/jobs/ID/snapshots: the newest first."""

    snapshots: tuple[Snapshot, ...]
