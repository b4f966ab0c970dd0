"""Slots with a restriction: reservations, maintenance windows, drained nodes, notebook servers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from minicluster.wire.base import EnvName, Message
from minicluster.wire.jobs import GPU_SHARE

NodeName = Annotated[str, Field(min_length=1, max_length=255)]


class MakeReservation(Message):
    """POST api/reservations. Times are seconds since the epoch.

    holder: of a reservation: a user's name, or "group:NAME"; "" for maintenance.
    nodes: (): any. slots: their number; None: all slots of these nodes.
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
    """ends_at: None: until it is withdrawn. by: who made it.

    over: why it ended early: withdrawn, or unused; "": it did not. told: its description in words.
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


# Notebook servers: messages between the spawner and the service, which has the one ledger of all slots.


class PlaceServer(Message):
    """PUT api/servers/OWNER/SERVER: a place for a notebook server; `-` in the path is the unnamed one.

    image: what the server runs; kept in the service's log only. node: None lets the service choose.
    gpus: slots of the kind "gpu" that it holds, for `gpu_s` at most (None: as long as allowed); 0.5: half of
        one, which it shares with another server or job.
    shared_home: the home can be reached from every node, so any node will do.
    new_home: if the home's node is down or was removed, begin with an empty home on another node.
    """

    image: str | None = Field(default=None, min_length=1, max_length=512)
    node: str | None = Field(default=None, min_length=1, max_length=255)
    gpus: float = Field(default=0, ge=0, le=64, multiple_of=GPU_SHARE)
    gpu_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    shared_home: bool = False
    new_home: bool = False

    @field_validator("gpus")
    @classmethod
    def _whole_or_half(cls, gpus: float) -> float:
        if gpus > 1 and gpus % 1:
            raise ValueError("a server has whole GPUs, or half of one")
        return gpus


class ServerPlacement(Message):
    """The placement of a notebook server, valid until it is deleted.

    id: unique among all placements; 0 from a service that gives none. slots: indexes
    of the node's slots that it holds. home_node: where the owner's home is, None if it has no node.
    until: when it has to give the slots back, in seconds since the epoch on the
    service's clock, None if it holds none. expired: that time is over; the slots are free only once
    the server has been stopped and its placement deleted. environment: added to the server's own.
    gpus: the ids of the GPUs that are held for it; none if the server has to request them itself.
    gpu_share: 0.5 if it has half of a GPU; None: whole ones.
    reclaimed: its GPUs were idle, and others may get them now.
    """

    id: int = 0
    owner: str
    server: str
    node: str
    slots: tuple[int, ...] = ()
    home_node: str | None = None
    until: float | None = None
    expired: bool = False
    environment: dict[EnvName, str] = Field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    gpu_share: float | None = None
    reclaimed: bool = False


class ServerList(Message):
    servers: tuple[ServerPlacement, ...]
