"""The messages that cross a socket, shared by the notebook, the job service and the agents.

Each message is one frozen model, used on both ends. The server refuses unknown fields by name
(`parse_strict`); clients ignore them, so that a newer server can add some.
"""

from .base import (
    VERSION_HEADER,
    WIRE_VERSION,
    EnvName,
    ErrorAnswer,
    ErrorDetail,
    Message,
    Sha256,
    StreamName,
    parse_strict,
)
from .jobs import (
    BlobInfo,
    ErrorKind,
    Job,
    JobError,
    JobList,
    JobSpec,
    JobState,
    JobSubmit,
    Node,
    NodeList,
    NodeRange,
    SlotUse,
)
from .servers import PlaceServer, ServerList, ServerPlace
from .snapshots import Snapshot, SnapshotList, SnapshotRef, SnapshotReport
from .streams import LogChunk, Record, Records
from .tasks import (
    RankReport,
    RankState,
    ReportAnswer,
    RunOrder,
    StopMode,
    StreamChunk,
    TaskOrders,
    TaskReport,
)
from .why import JobWhy, RankSight, RankStack, StackFrame

__all__ = [
    "VERSION_HEADER",
    "WIRE_VERSION",
    "BlobInfo",
    "EnvName",
    "ErrorAnswer",
    "ErrorDetail",
    "ErrorKind",
    "Job",
    "JobError",
    "JobList",
    "JobSpec",
    "JobState",
    "JobSubmit",
    "JobWhy",
    "LogChunk",
    "Message",
    "Node",
    "NodeList",
    "NodeRange",
    "PlaceServer",
    "RankReport",
    "RankSight",
    "RankStack",
    "RankState",
    "Record",
    "Records",
    "ReportAnswer",
    "RunOrder",
    "ServerList",
    "ServerPlace",
    "Sha256",
    "SlotUse",
    "Snapshot",
    "SnapshotList",
    "SnapshotRef",
    "SnapshotReport",
    "StackFrame",
    "StopMode",
    "StreamChunk",
    "StreamName",
    "TaskOrders",
    "TaskReport",
    "parse_strict",
]
