"""Slots that are not for everybody for a while: reservations, maintenance windows, drained nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from minicluster.wire.base import Message

NodeName = Annotated[str, Field(min_length=1, max_length=255)]


class MakeReservation(Message):
    """POST api/reservations. Times are seconds since the epoch.

    holder: of a reservation: a user's name, or "group:NAME"; "" for maintenance.
    nodes: of a reservation: (): whichever. slots: how many, None: all of these nodes.
    begins_at: None: now. note: why, shown to those who wait.
    """

    kind: Literal["reservation", "maintenance"]
    holder: str = Field(default="", max_length=255)
    nodes: tuple[NodeName, ...] = Field(default=(), max_length=1000)
    slots: int | None = Field(default=None, ge=1, le=100_000)
    begins_at: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    ends_at: float = Field(ge=0, allow_inf_nan=False)
    note: str = Field(default="", max_length=200)


class DrainNode(Message):
    """POST api/nodes/NODE/drain. note: why, shown to those who wait."""

    note: str = Field(default="", max_length=200)


class Reservation(Message):
    """ends_at: None: until it is taken back. by: who made it.

    over: why it is over before its end: taken back, or nobody used it; "": it is not. told: in words.
    """

    id: int
    kind: Literal["reservation", "maintenance", "drain"]
    holder: str = ""
    nodes: tuple[str, ...] = ()
    slots: int | None = None
    begins_at: float
    ends_at: float | None = None
    note: str = ""
    by: str = ""
    over: str = ""
    told: str = ""


class ReservationList(Message):
    """GET api/reservations: active and future ones by their begin, then those that ended lately."""

    claims: tuple[Reservation, ...]
