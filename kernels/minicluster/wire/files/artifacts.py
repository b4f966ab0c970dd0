"""Files of a job's output folder: reported by agents, listed for their owner."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Base64Bytes, Field

from minicluster.wire.base import Count, Message, Sha256
from minicluster.wire.jobs import BlobInfo
from minicluster.wire.limits import SMALL_FILE_CHARS

PATH_BYTES = 1024
LEFT = "Left in the output folder"
"""The beginning of agents' notes about files that were not uploaded."""
RESULT_LEFT = "The result could not be brought back"
"""The same for the result."""


def relative_path(path: str) -> str:
    """Return a path with slashes that stays below its folder. Raises ValueError."""
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError("want a path like folder/file, without . and .. and without a slash at its ends")
    if len(path.encode()) > PATH_BYTES:
        raise ValueError(f"the path has more than {PATH_BYTES} bytes")
    return path


RelativePath = Annotated[str, Field(max_length=PATH_BYTES), AfterValidator(relative_path)]


class OutputLimits(Message):
    """How much one task may upload from its output folder; a note names what is left there."""

    files: int = Field(default=10_000, ge=0)
    size_bytes: int = Field(default=50 * 1024**3, ge=0)


class ArtifactReport(Message):
    """A file that the agent has uploaded. part: the GROUP_RANK of its task."""

    path: RelativePath
    part: int = Field(ge=0, le=9_999)
    blob: BlobInfo


class SmallFiles(Message):
    """POST api/tasks/files: the contents of several files, each stored by its SHA-256."""

    contents: tuple[Annotated[Base64Bytes, Field(max_length=SMALL_FILE_CHARS)], ...] = Field(
        min_length=1, max_length=1000
    )


class Artifact(Message):
    """A file as its owner sees it. Each task has a folder, so each `part` may have the same path."""

    path: RelativePath
    part: int
    size_bytes: int
    sha256: Sha256
    created_at: float

    @property
    def place(self) -> str:
        """Its name in the parameter `after`: PART/PATH."""
        return f"{self.part}/{self.path}"


class ArtifactList(Message):
    """GET api/jobs/ID/files: a page of them by task and path.

    keep_until: when they are removed; None: never, or not known yet. left: files that were not uploaded, with
    the reason; only on the first page. more: the next page begins `after` the last of these.
    """

    artifacts: tuple[Artifact, ...]
    keep_until: float | None = None
    left: tuple[str, ...] = ()
    more: bool = False


# Snapshots of a job: what an agent uploads into the job's storage, and what is stored there.


class SnapshotRef(Message):
    """A complete snapshot in the job's storage. attempt: the id of the attempt that made it."""

    step: int = Field(ge=0, le=2**62)
    attempt: Count
    parts: tuple[BlobInfo, ...] = Field(min_length=1)


class SnapshotReport(Message):
    """A part that the agent has uploaded into the job's storage. keep: how many snapshots the job wants."""

    step: int = Field(ge=0, le=2**62)
    attempt: Count
    blob: BlobInfo
    part: int = Field(default=0, ge=0, le=9_999)
    parts: int = Field(default=1, ge=1, le=10_000)
    keep: int = Field(default=2, ge=1, le=10_000)


class Snapshot(Message):
    """A complete snapshot as the job's owner sees it. attempt: the attempt's number in its job.

    parts: how many files it has: that of a divided model, one for each node.
    """

    step: int
    attempt: int
    size_bytes: int
    created_at: float
    parts: int = 1


class SnapshotList(Message):
    """GET api/jobs/ID/snapshots: the newest first."""

    snapshots: tuple[Snapshot, ...]
