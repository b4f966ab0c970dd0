"""What all messages have in common, and the answer to a request that is refused."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from minicluster.wire.limits import Name, VersionText

WIRE_VERSION = 1
VERSION_HEADER = "Minicluster-Wire"
"""Every request carries it; a server that speaks another version answers 426 and says so."""
MOST = 2**53
"""The largest whole number in a message: up to it all readers of JSON agree, and it has 16 digits."""
Count = Annotated[int, Field(ge=0, le=MOST)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
StreamName = Annotated[str, Field(pattern=r"^(rank-\d{1,5}|display-\d{1,5}|records|agent-\d{1,5})$")]
M = TypeVar("M", bound=BaseModel)
Holder = Annotated[str, Field(min_length=1, max_length=255)]
"""A user's name, "group:NAME", or "*" for everybody who has nothing of their own."""
Limits = Annotated[dict[Name, float | None], Field(max_length=100)]


class Message(BaseModel):
    """Base of all messages: frozen, unknown fields ignored unless parsed strictly.

    NaN and infinity travel as the strings "NaN" and "Infinity": JSON has no numbers for them.
    A validator is built when its message is first used: each process uses few of them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings", defer_build=True)


def parse_strict(model: type[M], body: bytes | str) -> M:
    """Parse a request's JSON, refusing unknown fields by name.

    Raises pydantic.ValidationError (the server's answer to it is 422).
    """
    return model.model_validate_json(body, extra="forbid")


class ErrorDetail(Message):
    code: str
    message: str
    hint: str = ""


class ErrorAnswer(Message):
    """The body of every answer with a status of 400 or more."""

    error: ErrorDetail


# Who may have how much: quotas and weights, as an admin sees and changes them.


class Allowances(Message):
    """PUT api/quotas: all of it, in the place of what was.

    quotas: by holder; of what kinds there are, GET tells; None or left out: no limit.
    shares: weights in fair shares.
    """

    quotas: dict[Holder, Limits] = Field(default_factory=dict, max_length=10_000)
    shares: dict[Holder, float] = Field(default_factory=dict, max_length=10_000)


class ActiveAllowances(Message):
    """since: seconds since the epoch. by: who changed it last, "": the cluster's settings."""

    allowances: Allowances
    by: str = ""
    since: float = 0.0


class QuotaKind(Message):
    """A kind of quota that there is. summary: what it limits, in a line."""

    name: str
    summary: str


class AllowancesReport(Message):
    """GET api/quotas. groups: of the owners that were seen, by owner."""

    in_force: ActiveAllowances
    kinds: tuple[QuotaKind, ...] = ()
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)


# What both sides of a connection run, so that what does not fit is told before anything is sent.


class Versions(Message):
    """Of one Python environment; "" is a package that it does not have."""

    python: VersionText = ""
    minicluster: VersionText = ""
    cloudpickle: VersionText = ""
    torch: VersionText = ""

    @classmethod
    def here(cls) -> Versions:
        """Return those of this environment, read from its files: nothing is imported."""
        packages = ("minicluster", "cloudpickle", "torch")
        return cls(python=platform.python_version(), **{name: _installed(name) for name in packages})

    @property
    def python_minor(self) -> str:
        """Return 3.12 of 3.12.1: functions and classes by value do not cross it."""
        return ".".join(self.python.split(".")[:2])


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class Ability(Message):
    """What the cluster can, or cannot, with its engine. instead: what happens where it cannot; else ""."""

    name: str
    can: bool
    instead: str = ""


class About(Message):
    """GET api/about?image=: whom the token is for, and what is on the other side.

    scopes: of the token, as the hub resolves them. release: of minicluster, where the hub is.
    ranks: what ranks have in that image (the cluster's own if none is named); None as long as no task
        ran in it. (The engine `local` knows it from the start.)
    abilities: what the cluster can with its engine; () of a release that did not tell.
    """

    user: str
    scopes: tuple[str, ...] = ()
    wire_version: int
    release: str
    ranks: Versions | None = None
    abilities: tuple[Ability, ...] = ()
