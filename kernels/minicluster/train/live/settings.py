"""The settings of a rank in a fault-tolerant job, from its environment, and its time limits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

LIGHTHOUSE = "MINICLUSTER_LIGHTHOUSE"
"""host:port of the job's lighthouse; set in the ranks of a fault-tolerant job only."""
ADDRESS = "MINICLUSTER_LIVE_ADDRESS"
"""Where the other ranks of the gang reach this one."""
JOINS = "MINICLUSTER_LIVE_JOINS"
"""1 in a rank that was added to an attempt that runs."""
LIVE_RANK, LIVE_WORLD_SIZE = "MINICLUSTER_LIVE_RANK", "MINICLUSTER_LIVE_WORLD_SIZE"
"""This rank's number among those that take part now, and their count."""

HEARTBEAT = timedelta(milliseconds=100)
CALL = timedelta(seconds=30)
"""For a call to a manager or the fetch of a state to begin."""
CONNECT = timedelta(seconds=4)
"""For a connection to a manager or the lighthouse."""
MEET, MEET_MOST = timedelta(seconds=1), timedelta(seconds=8)
"""For the ranks of a new quorum to reach each other: twice as long after each time that they did not.

Short, since waiting for a rank that is gone again is useless: a rank that was frozen or cut off asks to take
part when it comes back, a moment before its agent ends it.
"""
QUORUM = timedelta(seconds=75)
"""For a quorum: longer than the lighthouse waits for a rank that is slow."""
COLLECTIVE = timedelta(minutes=30)
"""For an all-reduce whose ranks all answer: torch's own default."""
LIGHTHOUSE_AWAY_S = 600.0
"""How long training waits for a lighthouse that does not answer."""
LIGHTHOUSE_TRIES = 1_000_000
START_WAIT_S = 20.0
"""How long the first ranks wait for each other before the first step."""


@dataclass(frozen=True)
class LiveSettings:
    """A rank's part of a fault-tolerant job. rank: its own number, kept for as long as it lives."""

    lighthouse: str
    address: str
    rank: int
    world_size: int
    joins: bool
    store: tuple[str, int]

    @property
    def replica(self) -> str:
        """Return the name under which the lighthouse knows this rank; torchft adds a random number."""
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
