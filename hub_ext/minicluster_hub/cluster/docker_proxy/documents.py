"""The documents with which hub and job service may create Docker objects.

The names are those of Docker's API. A field that is not here is refused. That rules out capabilities,
sysctls, devices, groups, configs, plugins and published ports.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
Folder = Annotated[str, Field(pattern="^/", max_length=4096)]
LabelMap = dict[str, str]
UserId = Literal["1000", "1000:1000"]
Variable = Annotated[
    str,
    Field(
        pattern=r"^(MINICLUSTER_[A-Z_]+|NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES|DOCKER_RESOURCE_GPU"
        r"|CUDA_MPS_PIPE_DIRECTORY|CUDA_MPS_LOG_DIRECTORY)="
    ),
]
"""NAME=VALUE. No allowed variable changes which program a command starts, or what the program loads."""
Constraint = Annotated[str, Field(pattern=r"^node\.(id==[a-z0-9-]+|role==manager)$")]
SecretId = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")]


class StrictModel(BaseModel):
    """Part of a document; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TmpfsOptionsPart(StrictModel):
    SizeBytes: int = 0
    Mode: int = 0


class Driver(StrictModel):
    """The driver of a volume or a log."""

    Name: Literal["local", "json-file"]
    Options: dict[str, str] = {}


class VolumeOptionsPart(StrictModel):
    NoCopy: bool = False
    Labels: LabelMap = {}
    DriverConfig: Driver | None = None


class BindOptionsPart(StrictModel):
    Propagation: Literal["private", "rprivate", "slave", "rslave"]


class Mount(StrictModel):
    Type: Literal["tmpfs", "volume", "bind"]
    Target: Folder
    Source: str = ""
    ReadOnly: bool = False
    TmpfsOptions: TmpfsOptionsPart | None = None
    VolumeOptions: VolumeOptionsPart | None = None
    BindOptions: BindOptionsPart | None = None


class SecretFile(StrictModel):
    Name: Word
    UID: Literal["1000"]
    GID: Literal["1000"]
    Mode: Literal[0o400]


class SecretReference(StrictModel):
    """Docker refuses an id with another secret's name."""

    SecretID: SecretId
    SecretName: Word
    File: SecretFile


class PrivilegesPart(StrictModel):
    NoNewPrivileges: Literal[True]


class HealthcheckPart(StrictModel):
    """Only whether the file of a shared GPU's daemon is there."""

    Test: tuple[
        Literal["CMD"], Literal["test"], Literal["-e"], Literal["/run/minicluster-mps/minicluster.ready"]
    ]
    Interval: int
    Retries: int


class ContainerSpecPart(StrictModel):
    Image: str
    Command: list[str] = []
    Args: list[str] = []
    Env: list[Variable] = []
    User: UserId
    Hostname: Word | None = None
    Labels: LabelMap
    Init: bool = False
    ReadOnly: bool = False
    StopGracePeriod: int = 0
    Healthcheck: HealthcheckPart | None = None
    CapabilityDrop: tuple[Literal["ALL"]]
    Privileges: PrivilegesPart
    Mounts: list[Mount] = []
    Secrets: list[SecretReference] = []


class DiscreteResource(StrictModel):
    Kind: Word
    Value: int


class GenericResource(StrictModel):
    DiscreteResourceSpec: DiscreteResource


class LimitsPart(StrictModel):
    NanoCPUs: int = 0
    MemoryBytes: int = 0
    Pids: int = 0


class ReservationsPart(StrictModel):
    NanoCPUs: int = 0
    MemoryBytes: int = 0
    GenericResources: list[GenericResource] = []


class ResourcesPart(StrictModel):
    Limits: LimitsPart | None = None
    Reservations: ReservationsPart | None = None


class RestartPolicyPart(StrictModel):
    Condition: Literal["none", "any", "on-failure"]
    Delay: int = 0


class PlacementPart(StrictModel):
    Constraints: list[Constraint]


class NetworkAttachment(StrictModel):
    Target: Word
    Aliases: list[Word] = []


class TaskTemplatePart(StrictModel):
    ContainerSpec: ContainerSpecPart
    Resources: ResourcesPart | None = None
    RestartPolicy: RestartPolicyPart
    Placement: PlacementPart
    Networks: list[NetworkAttachment]
    LogDriver: Driver


class ReplicatedPart(StrictModel):
    Replicas: Literal[1]


class ModePart(StrictModel):
    Replicated: ReplicatedPart


class EndpointSpecPart(StrictModel):
    Mode: Literal["dnsrr"]


class ServiceDocument(StrictModel):
    """The document of POST /services/create."""

    Name: Word
    Labels: LabelMap
    TaskTemplate: TaskTemplatePart
    Mode: ModePart
    Networks: None = None
    EndpointSpec: EndpointSpecPart


class SecretDocument(StrictModel):
    """The document of POST /secrets/create."""

    Name: Word
    Labels: LabelMap
    Data: Annotated[str, Field(max_length=1 << 20)]


class NetworkDocument(StrictModel):
    """The document of POST /networks/create."""

    Name: Word
    Driver: Literal["overlay"]
    Labels: LabelMap
    Attachable: Literal[False]
    Options: None = None
    IPAM: None = None
    CheckDuplicate: bool | None = None


Document = ServiceDocument | SecretDocument | NetworkDocument
DOCUMENTS: dict[str, type[Document]] = {
    "services": ServiceDocument,
    "secrets": SecretDocument,
    "networks": NetworkDocument,
}


def parse(kind: str, text: bytes) -> Document:
    """Read a document. Raises pydantic.ValidationError, which names what is not allowed."""
    return DOCUMENTS[kind].model_validate_json(text)


def serialize(document: Document) -> bytes:
    """Write a document anew, so that Docker reads exactly the checked fields.

    Docker accepts `mounts` as `Mounts`, and merges repeated fields by rules of its own.
    """
    return document.model_dump_json(exclude_none=True, exclude_unset=True).encode()


def complaints(error: ValidationError) -> str:
    """Return which fields are not allowed, and why, without their values."""
    found = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the document'}: {one['msg']}" for one in found)
