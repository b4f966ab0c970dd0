"""What users store on the job service's disk: its size by kind, the largest items, and the limits."""

from __future__ import annotations

from enum import StrEnum

from minicluster.wire.base import Message

GB = 10**9
FILE_BYTES = 4096
"""The least that a file counts: an empty one takes an entry and a block of the disk, too."""


class StorageKind(StrEnum):
    """cells: with the values and files sent with them, and results. files: of output folders.

    output: printed text. compiled: what torch.compile made."""

    CELLS = "cells"
    SNAPSHOTS = "snapshots"
    FILES = "files"
    OUTPUT = "output"
    DATA = "data"
    IMAGES = "images"
    COMPILED = "compiled"


KIND_NAMES = {
    StorageKind.CELLS: "cells and results",
    StorageKind.SNAPSHOTS: "snapshots",
    StorageKind.FILES: "files of output folders",
    StorageKind.OUTPUT: "output",
    StorageKind.DATA: "data sets",
    StorageKind.IMAGES: "published images",
    StorageKind.COMPILED: "code of torch.compile",
}
"""Their names in messages and on pages."""


class StorageUse(Message):
    """The size of all of a kind. files: their number; a data set's files are its pieces."""

    kind: StorageKind
    size_bytes: int
    files: int = 0


class OwnerStorage(Message):
    """What one user stores, the largest kind first. coming_bytes: being uploaded now."""

    owner: str
    used_bytes: int
    limit_bytes: int
    coming_bytes: int = 0
    uses: tuple[StorageUse, ...] = ()


class StoredThing(Message):
    """Something that can be removed as a whole: all that a job stores, or a data set.

    job_id: None for a data set. open: the job has not ended, and so cannot be removed. A blob that several
    jobs use counts for each of them. earlier_versions: those of a data set that runs read; earlier_bytes:
    what of size_bytes only they take.
    """

    owner: str
    name: str
    size_bytes: int
    job_id: int | None = None
    open: bool = False
    created_at: float = 0.0
    uses: tuple[StorageUse, ...] = ()
    earlier_versions: int = 0
    earlier_bytes: int = 0


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
