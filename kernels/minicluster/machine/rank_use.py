"""Reads what this task's ranks use, every two seconds, for the reports of their agent."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Protocol

from minicluster.machine.gpus import find_gpus
from minicluster.machine.ranks import RankReader
from minicluster.machine.reader import EACH_S
from minicluster.machine.system import SystemFiles
from minicluster.machine.unsent import UnsentReadings
from minicluster.wire import RANKS_OF_TASK, RankReading

log = logging.getLogger("minicluster.agent")


class ReadRank(Protocol):
    """pid: None while the rank does not live."""

    @property
    def rank(self) -> int: ...

    @property
    def pid(self) -> int | None: ...


class RankUse:
    """The readings of one attempt's ranks here."""

    def __init__(self, ranks: Sequence[ReadRank]) -> None:
        self.unsent: UnsentReadings[RankReading] = UnsentReadings(RANKS_OF_TASK)
        self._ranks = ranks

    async def run(self) -> None:
        """Read until cancelled."""
        gpus = await asyncio.to_thread(find_gpus) if has_gpus() else None
        reader = RankReader(gpus, network=SystemFiles().container_network)
        local_ranks = {rank.rank: number for number, rank in enumerate(self._ranks)}
        while True:
            pids = {rank.rank: rank.pid for rank in self._ranks if rank.pid is not None}
            try:
                self.unsent.add(*await asyncio.to_thread(reader.read, pids, local_ranks))
            except (OSError, ValueError, IndexError) as error:
                log.warning("the use of ranks was not read: %s", error)
            await asyncio.sleep(EACH_S)


def has_gpus(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the engine gave this task GPUs."""
    given = environ.get("MINICLUSTER_GPUS", "0") not in ("", "0")
    return given or bool(environ.get("CUDA_VISIBLE_DEVICES"))
