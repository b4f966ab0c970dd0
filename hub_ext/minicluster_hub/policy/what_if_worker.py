"""What each policy would have done with the last week's jobs: worked out beside the loop, one at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from minicluster.wire import PolicyChoice, WhatIfFigures, WhatIfReport, WhatIfRow
from minicluster_hub.jobs.records import NodeView
from minicluster_hub.policy.active_policy import PolicyManager
from minicluster_hub.policy.choices import build
from minicluster_hub.scheduling.base import Topology
from minicluster_hub.scheduling.policies import POLICIES
from minicluster_hub.simulator.metrics import Metrics
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.replay import SimulatedScheduler, SimulationStuck
from minicluster_hub.simulator.what_if import PastJob, assumed, comparable, past_jobs, really, shadow
from minicluster_hub.store import Store
from minicluster_hub.support.computing import Rests

PERIOD_S = 7 * 86400.0
MOST_JOBS = 500
"""The newest ones: more take minutes, and tell hardly more."""


class WhatIfWorker:
    """nodes: called for those that there are. model: what is assumed of jobs."""

    def __init__(
        self,
        store: Store,
        policy_manager: PolicyManager,
        nodes: Callable[[], Sequence[NodeView]],
        clock: Callable[[], float],
        log: logging.Logger,
        model: Model | None = None,
    ) -> None:
        self._store = store
        self._policy_manager = policy_manager
        self._nodes = nodes
        self._clock = clock
        self._log = log
        self._model = model or Model()
        self._work: asyncio.Task[WhatIfReport] | None = None
        self.latest: WhatIfReport | None = None
        """What was last worked out since the service began."""
        self._closed = False

    async def report(self) -> WhatIfReport:
        """Work it out, or wait for who is at it already."""
        if self._work is None or self._work.done():
            up = Topology({node.name: len(node.slot_kinds) for node in self._nodes() if node.open})
            choice = self._policy_manager.in_force.choice
            self._work = asyncio.create_task(asyncio.to_thread(self._evaluate, up, choice))
        self.latest = found = await asyncio.shield(self._work)
        return found

    def close(self) -> None:
        """Have what is under way end with the policy that it is at."""
        self._closed = True
        if self._work is not None:
            self._work.cancel()

    def _evaluate(self, topology: Topology, in_force: PolicyChoice) -> WhatIfReport:
        until = self._clock()
        since = until - PERIOD_S
        uses = self._store.usage.since(since)
        records = self._store.jobs_by_id({use.job_id for use in uses if use.job_id is not None})
        history = list(past_jobs((job for job in records if job.created_at >= since), uses))
        jobs = comparable(history, topology)[-MOST_JOBS:]
        told = WhatIfReport(
            since=since,
            until=until,
            jobs=len(jobs),
            left_out=len(history) - len(jobs),
            placement=in_force.placement,
            assumed=tuple(assumed(self._model)),
        )
        if not jobs:
            return told
        rows = tuple(self._rows(jobs, topology, in_force))
        return told.model_copy(update={"really": _figures(really(jobs, topology)), "policies": rows})

    def _rows(
        self, jobs: Sequence[PastJob], topology: Topology, in_force: PolicyChoice
    ) -> Iterator[WhatIfRow]:
        for name in sorted(POLICIES):
            options = in_force.options if name == in_force.policy else {}
            choice = PolicyChoice(policy=name, placement=in_force.placement, options=options)
            if self._closed:
                return
            try:
                policy_manager = SimulatedScheduler(topology, *build(choice), self._model, rest=Rests())
                yield WhatIfRow(policy=name, figures=_figures(shadow(jobs, policy_manager)))
            except SimulationStuck as stuck:
                yield WhatIfRow(policy=name, trouble=str(stuck))
            except Exception as error:
                self._log.exception("no shadow of the policy %s", name)
                yield WhatIfRow(policy=name, trouble=f"{type(error).__name__}: {error}")


def _figures(metrics: Metrics) -> WhatIfFigures:
    return WhatIfFigures(
        average_s=metrics.average_s,
        median_s=metrics.median_s,
        p99_s=metrics.p99_s,
        longest_wait_s=metrics.longest_wait_s,
        makespan_s=metrics.makespan_s,
        restarts=metrics.restarts,
        evenness=metrics.jain_owners,
        busy=metrics.busy,
    )
