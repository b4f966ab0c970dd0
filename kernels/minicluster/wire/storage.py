"""What users keep on the job service's disk: how much of what, what of it is largest, how much they may."""

from __future__ import annotations

from enum import StrEnum

from minicluster.wire.base import Message

GB = 10**9
FILE_BYTES = 4096
"""What a file costs at least: a disk keeps an entry and a block for an empty one, too."""


class StorageKind(StrEnum):
    """cells: with what they took along, and results. files: of output folders. output: what jobs printed."""

    CELLS = "cells"
    SNAPSHOTS = "snapshots"
    FILES = "files"
    OUTPUT = "output"
    DATA = "data"
    IMAGES = "images"


KIND_NAMES = {
    StorageKind.CELLS: "cells and results",
    StorageKind.SNAPSHOTS: "snapshots",
    StorageKind.FILES: "files of output folders",
    StorageKind.OUTPUT: "output",
    StorageKind.DATA: "data sets",
    StorageKind.IMAGES: "published images",
}
"""What people call them."""


class StorageUse(Message):
    """How much there is of a kind. files: how many; a data set's are its pieces."""

    kind: StorageKind
    size_bytes: int
    files: int = 0


class OwnerStorage(Message):
    """What one user has, the largest kind first. coming_bytes: on their way now."""

    owner: str
    used_bytes: int
    limit_bytes: int
    coming_bytes: int = 0
    uses: tuple[StorageUse, ...] = ()


class StoredThing(Message):
    """Something that can be removed as a whole: what a job keeps, or a data set.

    job_id: of a job; open: it is not over, and can be removed only then. A blob that several jobs name counts
    for each of them.
    """

    owner: str
    name: str
    size_bytes: int
    job_id: int | None = None
    open: bool = False
    created_at: float = 0.0
    uses: tuple[StorageUse, ...] = ()


class DiskRoom(Message):
    """The job service's disk. reserve_bytes: kept free for its database."""

    free_bytes: int
    total_bytes: int
    reserve_bytes: int


class StorageReport(Message):
    """GET api/storage: the user's own; for admins who ask for all, everyone's, the largest first.

    things: the largest, not all of them.
    """

    owners: tuple[OwnerStorage, ...]
    things: tuple[StoredThing, ...]
    disk: DiskRoom | None = None
