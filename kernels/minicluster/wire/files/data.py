"""Data sets: what a notebook pushes, what a job names, and what the data set agent of each node fetches.

A data set is one stream of bytes: its files in the order of their paths, one after the other. The
stream is cut into pieces, which travel and are kept by their SHA-256. So the manifest needs no offsets,
and 20,000 small files are some dozens of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, NamedTuple

from pydantic import FailFast, Field, model_validator

from minicluster.wire.base import Count, Message, Sha256
from minicluster.wire.files.artifacts import relative_path
from minicluster.wire.jobs import BlobInfo
from minicluster.wire.limits import DATA_SETS_OF_NODE, NODES, Name, NodeAddresses, Sentence
from minicluster.wire.machines.readings import READINGS_OF_REPORT, MachineReading

PIECE_BYTES = 16 << 20
"""The largest piece."""
MANIFEST_BYTES = 128 << 20
"""The largest manifest."""
PIECES_MOST = 200_000
"""So many pieces a data set has at most: 1.6 TB at least, by how they are cut."""
FILES_MOST = 2_000_000
"""So many files a data set has at most."""

DataName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
CacheFolder = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+$", max_length=64)]
"""The name of a folder of a node's cache: the data set agent joins it to a path."""


class DataFile(NamedTuple):
    """One file of a data set. path: with slashes, below the data set's folder."""

    path: str
    size_bytes: Annotated[int, Field(ge=0)]
    executable: bool = False


class DataManifest(Message):
    """What a data set consists of; its own SHA-256 names a version. `pieces`: of the stream, in order."""

    files: Annotated[tuple[DataFile, ...], Field(max_length=FILES_MOST), FailFast()]
    pieces: Annotated[tuple[BlobInfo, ...], Field(max_length=PIECES_MOST), FailFast()]

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    @model_validator(mode="after")
    def _sound(self) -> DataManifest:
        if any(not 0 < piece.size_bytes <= PIECE_BYTES for piece in self.pieces):
            raise ValueError(f"a piece has 1 to {PIECE_BYTES} bytes")
        if sum(file.size_bytes for file in self.files) != self.size_bytes:
            raise ValueError("the files and the pieces differ in size")
        _check_paths([file.path for file in self.files])
        return self


def _check_paths(paths: Sequence[str]) -> None:
    """Raise ValueError unless each is a file of its own below the data set's folder.

    A folder sorts right before what is in it, so that this needs no more memory than the paths.
    """
    for path in paths:
        try:
            relative_path(path)
        except ValueError as error:
            raise ValueError(f"{path[:80]!r} is no path of a file below a folder: {error}") from error
    for one, other in pairwise(sorted(path.replace("/", "\0") for path in paths)):
        if one == other:
            raise ValueError(f"the path {_told(one)} stands there twice")
        if other.startswith(f"{one}\0"):
            raise ValueError(f"{_told(one)} is a file and a folder")


def _told(sorted_by: str) -> str:
    return repr(sorted_by[:80].replace("\0", "/"))


class MissingPieces(Message):
    """POST api/data/missing; the answer, of the same form, holds those that are to be sent."""

    pieces: tuple[BlobInfo, ...] = Field(max_length=10_000)


class SaveDataSet(Message):
    """PUT api/data/sets/NAME: the manifest, a piece too, and all its pieces are there.

    shared: all users may name it, as OWNER/NAME. None: as it was.
    """

    manifest_sha256: Sha256
    shared: bool | None = None


VERSION_CHARS = 12
"""Characters of a manifest's SHA-256 that name a version to people."""


class DataSetEarlier(Message):
    """A version of a data set that is not the newest. read_at: when a run was last submitted with it."""

    manifest_sha256: Sha256
    size_bytes: int
    read_at: float


class DataSet(Message):
    """A data set as users see it. manifest_sha256: of its newest version; `earlier` can be read as well."""

    name: str
    owner: str
    manifest_sha256: Sha256
    files: int
    size_bytes: int
    shared: bool
    created_at: float
    nodes: tuple[str, ...] = ()
    earlier: tuple[DataSetEarlier, ...] = ()


class DataSetList(Message):
    """GET api/data: the user's own, and those that others share."""

    sets: tuple[DataSet, ...]


class DataOrder(Message):
    """A data set that a node is to have. folder: its name in the cache, which nobody can guess.

    attempt: the newest that wants it; it is checked anew for each.
    """

    name: str
    folder: CacheFolder
    manifest_sha256: Sha256
    size_bytes: int
    files: int = 0
    attempt: int


class DataAgentOrders(Message):
    """GET api/data-agents/orders?have=VERSION&node=...: what the nodes of this agent are to have now."""

    version: str
    wanted: tuple[DataOrder, ...] = ()


class DataSetState(StrEnum):
    FETCHING = "fetching"
    READY = "ready"
    FAILED = "failed"


class DataSetStatus(Message):
    """How a data set stands on a node. attempt: the newest that it was checked for.

    detail: why it failed, or what it waits for; hint: what to do.
    """

    folder: Name
    standing: DataSetState
    done_bytes: Count = 0
    attempt: Count = 0
    detail: Sentence = ""
    hint: Sentence = ""


class GpuReading(Message):
    """What a GPU of the node does. idle_s: since its last use, or since the data set agent's start.

    held_bytes: of its memory, by whomever.
    """

    gpu: str = Field(min_length=1, max_length=128)
    idle_s: float = Field(ge=0, allow_inf_nan=False)
    held_bytes: Count


class DataAgentReport(Message):
    """POST api/data-agents/report: all that a data set agent knows, for its nodes.

    gpus: of those nodes, where their use is measured. addresses: all that the machine has, on any network.
    readings: of the machine, since the last report that was answered.
    """

    nodes: tuple[Name, ...] = Field(min_length=1, max_length=NODES)
    sets: tuple[DataSetStatus, ...] = Field(default=(), max_length=DATA_SETS_OF_NODE)
    gpus: tuple[GpuReading, ...] = Field(default=(), max_length=256)
    addresses: NodeAddresses = ()
    readings: tuple[MachineReading, ...] = Field(default=(), max_length=READINGS_OF_REPORT)
