"""What a job service that stands by shows: the store's state and the logs on the shared disk, read by turns.

The leader's bells ring in the leader alone, so here everything is rung at each look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minicluster_hub.bell import NODES
from minicluster_hub.board import Board
from minicluster_hub.logs import JobLogs
from minicluster_hub.models import World
from minicluster_hub.scenes import Limits, Sight, scenes
from minicluster_hub.store import Store, StoreUnavailable

LOOK_S = 1.0


class Standby:
    """Looks for those who read."""

    def __init__(
        self, store: Store, board: Board, logs: JobLogs, clock: Callable[[], float], log: logging.Logger
    ) -> None:
        self._store = store
        self._board = board
        self._logs = logs
        self._clock = clock
        self._log = log

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            before = self._board.world
            try:
                self._look()
            except StoreUnavailable as error:
                self._log.warning("standing by without a view of the jobs: %s", error)
            self._ring(before)
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        world = self._store.world()
        # Who stands by hears no agent: nobody is silent, and nothing is decided from this.
        sight = Sight({}, {task.id: 0.0 for task in world.tasks}, self._clock())
        self._board.show(world, scenes(world, sight, Limits()))

    def _ring(self, before: World) -> None:
        # Those of before, too: a job that ended is in no world any more.
        for job_id in {job.id for world in (before, self._board.world) for job in world.jobs}:
            self._board.changes.ring(job_id)
            self._logs.changes.ring(job_id)
        self._board.changes.ring(NODES)
