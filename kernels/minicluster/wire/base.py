"""What all messages have in common, and the answer to a request that is refused."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

WIRE_VERSION = 1
VERSION_HEADER = "Minicluster-Wire"
"""Every request carries it; a server that speaks another version answers 426 and says so."""

MOST = 2**53
"""The largest whole number in a message: up to it all readers of JSON agree, and it has 16 digits."""

Count = Annotated[int, Field(ge=0, le=MOST)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
StreamName = Annotated[str, Field(pattern=r"^(rank-\d{1,5}|display-\d{1,5}|records|agent-\d{1,5})$")]


class Message(BaseModel):
    """Base of all messages: frozen, unknown fields ignored unless parsed strictly.

    NaN and infinity travel as the strings "NaN" and "Infinity": JSON has no numbers for them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


M = TypeVar("M", bound=BaseModel)


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
