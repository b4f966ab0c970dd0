"""Asks the scheduler what may start, and keeps its decisions in the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from minicluster.wire import JobState
from minicluster_hub.board import Board
from minicluster_hub.engines.base import Engine
from minicluster_hub.models import World
from minicluster_hub.scenes import Limits, Sight, silent_nodes
from minicluster_hub.scheduling.base import Placement, Policy, Snapshot
from minicluster_hub.scheduling.reasons import explain
from minicluster_hub.scheduling.scheduler import (
    Admit,
    Decision,
    Extend,
    Grow,
    Reclaim,
    Reuse,
    schedule,
)
from minicluster_hub.store import GangTaken, SlotTaken, Store
from minicluster_hub.views import snapshot_of

GROWTH_PAUSE_S = 5.0
"""How long a job that lost a node, or a node that was to join it, gets no other one."""


class Planner:
    """Starts jobs by leasing slots: what follows is the reconciler's business."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        board: Board,
        policy: Policy,
        placement: Placement,
        limits: Limits,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._engine = engine
        self._board = board
        self._policy = policy
        self._placement = placement
        self._limits = limits
        self._log = log
        self._clock = clock
        self._no_growth: dict[int, float] = {}
        self.settling: frozenset[int] = frozenset()
        """Jobs that lost a node a moment ago: look again soon."""

    def plan(self, world: World, sight: Sight) -> bool:
        """Start or make room for waiting jobs; return whether anything was done."""
        snapshot = self._snapshot(world, sight)
        wanted = snapshot.waiting or snapshot.growing
        decisions = schedule(snapshot, self._policy, self._placement) if wanted else ()
        done = [self._apply(decision, sight.now) for decision in decisions]
        if not any(done):
            self._board.show_waits(explain(snapshot))
        return any(done)

    def pause_growth(self, job_id: int) -> None:
        """Give a job no more nodes for a while."""
        self._no_growth[job_id] = self._clock() + GROWTH_PAUSE_S

    def _snapshot(self, world: World, sight: Sight) -> Snapshot:
        now, away = self._clock(), silent_nodes(world, sight, self._limits)
        self.settling = _settling(world, sight.now - self._engine.settle_s) if away else frozenset()
        self._no_growth = {job_id: until for job_id, until in self._no_growth.items() if until > now}
        return snapshot_of(
            world,
            self._engine.nodes(),
            frozenset(scene.gang.id for scene in self._board.scenes.values() if scene.lost),
            sight.now,
            away=away,
            not_growing=self._no_growth,
            settling=self.settling,
        )

    def _apply(self, decision: Decision, now: float) -> bool:
        try:
            match decision:
                case Admit(job_id, places):
                    self._store.admit(job_id, places, now)
                case Reuse(job_id, gang_id):
                    self._store.bind(job_id, gang_id, now)
                case Extend(job_id, gang_id, places):
                    self._store.bind(job_id, gang_id, now, places)
                case Grow(job_id, places):
                    self._store.grow(job_id, places, now)
                case Reclaim(gang_id):
                    self._store.end_gang(gang_id)
                    return True
        except (SlotTaken, GangTaken) as error:
            self._log.warning("the plan no longer holds: %s", error)
            return False
        self._log.info("job %s: %s", job_id, decision)
        self._board.ring(job_id)
        return True


def _settling(world: World, since: float) -> frozenset[int]:
    """Return the jobs that lost a node after that moment, and wait for others."""
    lost = (job for job in world.jobs if job.state is JobState.QUEUED and job.gang_id is not None)
    return frozenset(job.id for job in lost if job.state_since > since)
