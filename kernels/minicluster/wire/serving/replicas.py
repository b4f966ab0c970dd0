"""A replica of a served model: what its job and its rank know of it, and what it reports."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from minicluster.wire.base import Count, Message, Sha256
from minicluster.wire.limits import PARTS_OF_JOB

MODEL_CHARS = 63
MOST_TENSORS = 32
MOST_DIMENSIONS = 8
MOST_BATCH = 1024
MOST_TIMEOUT_S = 3600.0
MOST_OPEN = 4096
"""Of the requests that one replica takes at the same time."""
MOST_REQUEST_BYTES = 1 << 30
ANY = -1
"""A dimension of any size, as the open inference protocol writes it."""
ONE = (1,)
"""The shape of a single text, or of a JSON value."""
VERBS = ("list", "logs", "stop", "scale", "auto", "versions", "back")
"""The commands of `%serve`: no model has their names."""

ModelName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", max_length=MODEL_CHARS)]
"""A part of an address: small letters, digits and dashes."""
TensorName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
Dimension = Annotated[int, Field(ge=ANY, le=1 << 40)]


class ValueKind(StrEnum):
    """What a model takes or returns.

    tensor: one tensor. named: several, by their names. text: one string, whose shape is [1], or a list of
    strings. json: anything else that JSON can write.
    """

    TENSOR = "tensor"
    NAMED = "named"
    TEXT = "text"
    JSON = "json"


class TensorType(StrEnum):
    """The data types of the open inference protocol (V2)."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"


class TensorSpec(Message):
    """A tensor that a model takes or returns. shape: ANY stands for any size."""

    name: TensorName
    datatype: TensorType
    shape: tuple[Dimension, ...] = Field(max_length=MOST_DIMENSIONS)


class Signature(Message):
    """What a model takes and returns, as its example showed.

    batched: the first dimension counts samples. torch: its tensors are torch's, not numpy's.
    """

    input_kind: ValueKind
    output_kind: ValueKind
    inputs: tuple[TensorSpec, ...] = Field(min_length=1, max_length=MOST_TENSORS)
    outputs: tuple[TensorSpec, ...] = Field(min_length=1, max_length=MOST_TENSORS)
    batched: bool = False
    torch: bool = True


class ReplicaOptions(Message):
    """How a replica answers.

    batch: most requests that it computes together; 1: each by itself. batch_wait_s: how long the first
    request of a batch waits for others. timeout_s: of a request, its wait in the replica included.
    open_requests: how many HAProxy gives it at the same time; further ones wait there. request_bytes: the
    longest request.
    """

    batch: int = Field(default=1, ge=1, le=MOST_BATCH)
    batch_wait_s: float = Field(default=0.005, ge=0, le=10)
    timeout_s: float = Field(default=30.0, gt=0, le=MOST_TIMEOUT_S)
    open_requests: int = Field(default=64, ge=1, le=MOST_OPEN)
    request_bytes: int = Field(default=4 << 20, ge=1024, le=MOST_REQUEST_BYTES)

    @model_validator(mode="after")
    def _waits_less_than_its_timeout(self) -> ReplicaOptions:
        if self.batch_wait_s >= self.timeout_s:
            raise ValueError(f"batch_wait_s {self.batch_wait_s:g} is not below timeout_s {self.timeout_s:g}")
        return self


class TrainedBy(Message):
    """The job whose result has the model: its cell, and what the cell made of the model."""

    job_id: Count
    payload_sha256: Sha256
    result_sha256: Sha256
    parts: tuple[Sha256, ...] = Field(default=(), max_length=PARTS_OF_JOB)

    @property
    def blobs(self) -> tuple[str, ...]:
        return (self.payload_sha256, self.result_sha256, *self.parts)

    def left_no(self, variable: str) -> str:
        """Return what a replica says if the job left no such variable. The job service looks for it."""
        return f"job {self.job_id} made or changed no {variable!r}"


class ReplicaOf(Message):
    """Which version of which model a job serves; only the service sets it.

    variable: the name that holds the model in its cell. trained_by: None: the model came with the cell.
    """

    model: Count
    name: ModelName
    version: Count
    variable: str = Field(default="", max_length=255)
    signature: Signature
    options: ReplicaOptions = ReplicaOptions()
    trained_by: TrainedBy | None = None


class ReplicaState(Message):
    """What an agent reports of the replica in its task. port: where it listens; ready: it answers."""

    port: int = Field(ge=1, le=65535)
    ready: bool = False
