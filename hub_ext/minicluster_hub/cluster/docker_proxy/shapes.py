"""What a document may consist of with which hub and job service have Docker make something.

The names are those of Docker's API. A field that is not here is refused. That is how there are no
capabilities, sysctls, devices, groups, configs, plugins or published ports.
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
        pattern=r"^(MINICLUSTER_[A-Z_]+|NVIDIA_VISIBLE_DEVICES|NVIDIA_DRIVER_CAPABILITIES|DOCKER_RESOURCE_GPU)="
    ),
]
"""NAME=VALUE. None of them changes which program a command starts, or what that loads."""
Constraint = Annotated[str, Field(pattern=r"^node\.(id==[a-z0-9-]+|role==manager)$")]
SecretId = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")]


class Part(BaseModel):
    """Part of a document: nothing in it goes unread."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TmpfsOptionsPart(Part):
    SizeBytes: int = 0
    Mode: int = 0


class Driver(Part):
    """Of a volume or a log."""

    Name: Literal["local", "json-file"]
    Options: dict[str, str] = {}


class VolumeOptionsPart(Part):
    NoCopy: bool = False
    Labels: LabelMap = {}
    DriverConfig: Driver | None = None


class BindOptionsPart(Part):
    Propagation: Literal["private", "rprivate", "slave", "rslave"]


class Mount(Part):
    Type: Literal["tmpfs", "volume", "bind"]
    Target: Folder
    Source: str = ""
    ReadOnly: bool = False
    TmpfsOptions: TmpfsOptionsPart | None = None
    VolumeOptions: VolumeOptionsPart | None = None
    BindOptions: BindOptionsPart | None = None


class SecretFile(Part):
    Name: Word
    UID: Literal["1000"]
    GID: Literal["1000"]
    Mode: Literal[0o400]


class SecretReference(Part):
    """Docker refuses an id and a name that do not belong together."""

    SecretID: SecretId
    SecretName: Word
    File: SecretFile


class PrivilegesPart(Part):
    NoNewPrivileges: Literal[True]


class ContainerSpecPart(Part):
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
    CapabilityDrop: tuple[Literal["ALL"]]
    Privileges: PrivilegesPart
    Mounts: list[Mount] = []
    Secrets: list[SecretReference] = []


class DiscreteResource(Part):
    Kind: Word
    Value: int


class GenericResource(Part):
    DiscreteResourceSpec: DiscreteResource


class LimitsPart(Part):
    NanoCPUs: int = 0
    MemoryBytes: int = 0
    Pids: int = 0


class ReservationsPart(Part):
    NanoCPUs: int = 0
    MemoryBytes: int = 0
    GenericResources: list[GenericResource] = []


class ResourcesPart(Part):
    Limits: LimitsPart | None = None
    Reservations: ReservationsPart | None = None


class RestartPolicyPart(Part):
    Condition: Literal["none", "any", "on-failure"]
    Delay: int = 0


class PlacementPart(Part):
    Constraints: list[Constraint]


class NetworkAttachment(Part):
    Target: Word
    Aliases: list[Word] = []


class TaskTemplatePart(Part):
    ContainerSpec: ContainerSpecPart
    Resources: ResourcesPart | None = None
    RestartPolicy: RestartPolicyPart
    Placement: PlacementPart
    Networks: list[NetworkAttachment]
    LogDriver: Driver


class ReplicatedPart(Part):
    Replicas: Literal[1]


class ModePart(Part):
    Replicated: ReplicatedPart


class EndpointSpecPart(Part):
    Mode: Literal["dnsrr"]


class Service(Part):
    """The document of POST /services/create."""

    Name: Word
    Labels: LabelMap
    TaskTemplate: TaskTemplatePart
    Mode: ModePart
    Networks: None = None
    EndpointSpec: EndpointSpecPart


class Secret(Part):
    """The document of POST /secrets/create."""

    Name: Word
    Labels: LabelMap
    Data: Annotated[str, Field(max_length=1 << 20)]


class Network(Part):
    """The document of POST /networks/create."""

    Name: Word
    Driver: Literal["overlay"]
    Labels: LabelMap
    Attachable: Literal[False]
    Options: None = None
    IPAM: None = None
    CheckDuplicate: bool | None = None


Document = Service | Secret | Network
SHAPES: dict[str, type[Service] | type[Secret] | type[Network]] = {
    "services": Service,
    "secrets": Secret,
    "networks": Network,
}


def of(kind: str, text: bytes) -> Document:
    """Read a document. Raises pydantic.ValidationError, which names what is not allowed."""
    return SHAPES[kind].model_validate_json(text)


def again(document: Document) -> bytes:
    """Write a document anew, so that what Docker reads is what was checked.

    Docker takes `mounts` for `Mounts`, and puts fields that come twice together in ways of its own.
    """
    return document.model_dump_json(exclude_none=True, exclude_unset=True).encode()


def complaints(error: ValidationError) -> str:
    """Return what is not allowed, with where it stands; values are left out."""
    found = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the document'}: {one['msg']}" for one in found)
