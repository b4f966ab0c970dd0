"""A rank's settings in a fault-tolerant job, from its environment, and time limits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

LIGHTHOUSE = "MINICLUSTER_LIGHTHOUSE"
"""The variable with the lighthouse's host:port, set only in ranks of fault-tolerant jobs."""
ADDRESS = "MINICLUSTER_LIVE_ADDRESS"
"""The variable with this rank's address for the gang's other ranks."""
JOINS = "MINICLUSTER_LIVE_JOINS"
"""The variable that is 1 in a rank that was added to a running attempt."""
LIVE_RANK, LIVE_WORLD_SIZE = "MINICLUSTER_LIVE_RANK", "MINICLUSTER_LIVE_WORLD_SIZE"
"""Variables with this rank's index among the participating ranks, and their number."""

HEARTBEAT = timedelta(milliseconds=100)
CALL = timedelta(seconds=30)
"""Limit for a call to a manager, and for the start of fetching a state."""
CONNECT = timedelta(seconds=4)
"""Limit for connecting to a manager or the lighthouse."""
MEET, MEET_MOST = timedelta(seconds=1), timedelta(seconds=8)
"""Limits for the ranks of a new quorum to connect to each other: doubled after each failure, up to a maximum.

They are short, since it is useless to wait for a lost rank: a rank that was frozen or cut off may ask to
rejoin just before its agent ends it.
"""
QUORUM = timedelta(seconds=75)
"""Limit for a quorum: longer than the lighthouse waits for a slow rank."""
COLLECTIVE = timedelta(minutes=30)
"""Limit for an all-reduce while all its ranks answer: torch's default."""
LIGHTHOUSE_AWAY_S = 600.0
"""How long training waits for a lighthouse that does not answer."""
LIGHTHOUSE_TRIES = 1_000_000
START_WAIT_S = 20.0
"""How long the first ranks wait for each other before the first step."""


@dataclass(frozen=True)
class LiveSettings:
    """A rank's settings in a fault-tolerant job. rank: its original number, which never changes."""

    lighthouse: str
    address: str
    rank: int
    world_size: int
    joins: bool
    store: tuple[str, int]

    @property
    def replica(self) -> str:
        """Return this rank's name at the lighthouse; torchft appends a random number."""
        return f"rank-{self.rank:06d}"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> LiveSettings:
        return cls(
            lighthouse=environ[LIGHTHOUSE],
            address=environ.get(ADDRESS) or "127.0.0.1",
            rank=int(environ.get("RANK", "0")),
            world_size=int(environ.get("WORLD_SIZE", "1")),
            joins=environ.get(JOINS) == "1",
            store=(environ.get("MASTER_ADDR", "127.0.0.1"), int(environ.get("MASTER_PORT") or 0)),
        )
