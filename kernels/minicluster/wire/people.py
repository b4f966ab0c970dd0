"""Who may have how much: quotas and weights, as an admin sees and changes them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from minicluster.wire.base import Message
from minicluster.wire.bounds import Name

Holder = Annotated[str, Field(min_length=1, max_length=255)]
"""A user's name, "group:NAME", or "*" for everybody who has nothing of their own."""


Limits = Annotated[dict[Name, float | None], Field(max_length=100)]


class Allowances(Message):
    """PUT api/quotas: all of it, in the place of what was.

    quotas: by holder; of what kinds there are, GET tells; None or left out: no limit.
    shares: weights in fair shares.
    """

    quotas: dict[Holder, Limits] = Field(default_factory=dict, max_length=10_000)
    shares: dict[Holder, float] = Field(default_factory=dict, max_length=10_000)


class AllowancesInForce(Message):
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

    in_force: AllowancesInForce
    kinds: tuple[QuotaKind, ...] = ()
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
