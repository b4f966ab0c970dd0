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
    "LogChunk",
    "Message",
    "Node",
    "NodeList",
    "NodeRange",
    "PlaceServer",
    "RankReport",
    "RankState",
    "Record",
    "Records",
    "ReportAnswer",
    "RunOrder",
    "ServerList",
    "ServerPlace",
    "Sha256",
    "SlotUse",
    "StopMode",
    "StreamChunk",
    "StreamName",
    "TaskOrders",
    "TaskReport",
    "parse_strict",
]
