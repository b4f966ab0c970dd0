"""The job service's uses of the simulator: the trial of a policy, forecasts, what-if reports.

No other module of the service imports the simulator.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from minicluster.wire import PolicyChoice, WhatIfFigures, WhatIfReport, WhatIfRow
from minicluster_hub.jobs.records import NodeView
from minicluster_hub.policy.choices import build
from minicluster_hub.policy.custom_policy import CustomPolicy
from minicluster_hub.scheduling.base import Placement, Policy, Snapshot, Topology
from minicluster_hub.scheduling.own import PolicyFailed
from minicluster_hub.scheduling.policies import POLICIES
from minicluster_hub.scheduling.scheduler import schedule
from minicluster_hub.simulator.metrics import ReplayMetrics
from minicluster_hub.simulator.model import DAY_S, Model
from minicluster_hub.simulator.replay import SimulatedScheduler, Simulation, SimulationStuck
from minicluster_hub.simulator.traces.synthetic import Lab, draw
from minicluster_hub.simulator.what_if import PastJob, actual, assumed, comparable, past_jobs, what_if
from minicluster_hub.simulator.workload import Shape, Work, workload
from minicluster_hub.store import Store

TRIAL_JOBS, TRIAL_DECISIONS, TRIAL_S = 200, 1000, 5.0
"""Bounds of a trial; each decision has its own time limit, too."""
WHAT_IF_S = 7 * DAY_S
WHAT_IF_JOBS = 500
"""How many of the newest jobs are simulated: more would take minutes, and change the figures little."""
_SHAPE = Shape(3, 4)
_LAB = Lab(jobs=TRIAL_JOBS, slots=_SHAPE.slots, load=0.8, longest_s=4 * 3600.0)
_PATIENCE = 50
_WORK_S = 0.001

Starts = Mapping[int, float]


def try_out(policy: Policy, placement: Placement, snapshot: Snapshot) -> None:
    """Plan the present jobs; a custom policy also plans random jobs in the simulator.

    Raises PolicyFailed, which names the decision that failed.
    """
    if isinstance(policy, CustomPolicy):
        policy.load()
    try:
        schedule(snapshot, policy, placement)
    except Exception as error:
        raise PolicyFailed(f"planning the jobs of this moment: {error_text(error)}") from error
    if isinstance(policy, CustomPolicy):
        _simulate(policy, placement)


def error_text(error: Exception) -> str:
    return str(error) if isinstance(error, PolicyFailed) else f"{type(error).__name__}: {error}"


def _simulate(policy: Policy, placement: Placement) -> None:
    model = Model(min_run_s=60.0)
    scheduler = SimulatedScheduler(Topology(_SHAPE.by_node()), policy, placement, model, patience=_PATIENCE)
    drawn = _less_known(workload(draw(_LAB, seed=0), _SHAPE, model, elastic=policy.elastic))
    simulation = Simulation(scheduler, drawn)
    until = time.monotonic() + TRIAL_S
    try:
        while simulation.advance() is not None:
            if simulation.decisions >= TRIAL_DECISIONS or time.monotonic() > until:
                return
    except SimulationStuck as stuck:
        raise PolicyFailed(f"in the simulator, {stuck}. Each job has to run in the end") from stuck
    except Exception as error:
        where = f"in the simulator, at decision {simulation.decisions} on random jobs"
        raise PolicyFailed(f"{where}: {error_text(error)}") from error


def _less_known(drawn: list[Work]) -> Iterator[Work]:
    """Yield the jobs as users submit them: without known run times, and some without a time limit."""
    for number, work in enumerate(drawn):
        view = replace(work.view, remaining_s=None)
        yield replace(work, view=replace(view, time_limit_s=None) if number % 3 == 0 else view)


def forecast_starts(
    snapshot: Snapshot, policy: Policy, placement: Placement, name: str
) -> tuple[Starts, Starts]:
    """Return the expected and the latest start of waiting jobs. name: the policy's.

    Jobs without a forecast are missing. This takes seconds: call it in a thread.
    """
    from minicluster_hub.simulator.forecast import BOUNDED, forecast, latest_starts

    rests = Rests()
    expected = forecast(snapshot, policy, placement, rest=rests)
    return expected, latest_starts(snapshot, policy, placement, rests) if name in BOUNDED else {}


class WhatIfWorker:
    """Simulates in a thread how each policy would have scheduled last week's jobs.

    active: returns the active choice. nodes: returns the present nodes. min_run_s, half_life_s: as in Model.
    """

    def __init__(
        self,
        store: Store,
        active: Callable[[], PolicyChoice],
        nodes: Callable[[], Sequence[NodeView]],
        clock: Callable[[], float],
        log: logging.Logger,
        *,
        min_run_s: float = 0.0,
        half_life_s: float = 7 * DAY_S,
    ) -> None:
        self.latest: WhatIfReport | None = None
        """The newest report since the service began."""
        self._store = store
        self._active = active
        self._nodes = nodes
        self._clock = clock
        self._log = log
        self._model = Model(min_run_s=min_run_s, half_life_s=half_life_s)
        self._work: asyncio.Task[WhatIfReport] | None = None
        self._closed = False

    async def report(self) -> WhatIfReport:
        """Return a new report; calls during its computation get the same one."""
        if self._work is None or self._work.done():
            up = Topology({node.name: len(node.slot_kinds) for node in self._nodes() if node.open})
            self._work = asyncio.create_task(asyncio.to_thread(self._evaluate, up, self._active()))
        self.latest = found = await asyncio.shield(self._work)
        return found

    def close(self) -> None:
        """Stop a running report when its simulation of the present policy ends."""
        self._closed = True
        if self._work is not None:
            self._work.cancel()

    def _evaluate(self, topology: Topology, active: PolicyChoice) -> WhatIfReport:
        until = self._clock()
        since = until - WHAT_IF_S
        uses = self._store.usage.since(since)
        records = self._store.jobs_by_id({use.job_id for use in uses if use.job_id is not None})
        history = list(past_jobs((job for job in records if job.created_at >= since), uses))
        jobs = comparable(history, topology)[-WHAT_IF_JOBS:]
        return WhatIfReport(
            since=since,
            until=until,
            jobs=len(jobs),
            left_out=len(history) - len(jobs),
            placement=active.placement,
            assumed=tuple(assumed(self._model)),
            really=_figures(actual(jobs, topology)) if jobs else None,
            policies=tuple(self._rows(jobs, topology, active)) if jobs else (),
        )

    def _rows(self, jobs: Sequence[PastJob], topology: Topology, active: PolicyChoice) -> Iterator[WhatIfRow]:
        for name in sorted(POLICIES):
            if self._closed:
                return
            options = active.options if name == active.policy else {}
            choice = PolicyChoice(policy=name, placement=active.placement, options=options)
            try:
                scheduler = SimulatedScheduler(topology, *build(choice), self._model, rest=Rests())
                yield WhatIfRow(policy=name, figures=_figures(what_if(jobs, scheduler)))
            except SimulationStuck as stuck:
                yield WhatIfRow(policy=name, trouble=str(stuck))
            except Exception as error:
                self._log.exception("no what-if figures of the policy %s", name)
                yield WhatIfRow(policy=name, trouble=f"{type(error).__name__}: {error}")


def _figures(metrics: ReplayMetrics) -> WhatIfFigures:
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


class Rests:
    """Pauses a computing thread for half of the time. Call it often: after 1 ms of work it sleeps for 1 ms.

    A thread may wait 5 ms for the interpreter's lock, and the event loop waits at each step of a request.
    Without pauses, an upload during a forecast of 500 jobs took 0.3 s.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._began = clock()

    def __call__(self) -> None:
        worked_s = self._clock() - self._began
        if worked_s >= _WORK_S:
            self._sleep(worked_s)
            self._began = self._clock()
