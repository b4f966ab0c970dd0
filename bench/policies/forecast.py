"""The error of predicted starts: each job gets a prediction at its arrival, which is compared with its start.

Runs once with the progress of all jobs known, once with only their time limits, which in random jobs are up
to five times too long; without both there is no prediction. Jobs that arrive later are unknown: under FIFO
they change nothing, under other policies they do. "told": number of jobs with a prediction. "by the told
one": share of these that started by the expected start; "by the latest": by the predicted latest start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parts.targets import Target, close

from minicluster_hub.scheduling.base import JobView, Snapshot
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.simulator.compare import Setting
from minicluster_hub.simulator.forecast import BOUNDED, forecast, latest_starts
from minicluster_hub.simulator.replay import SimulatedScheduler, Simulation
from minicluster_hub.simulator.traces import read
from minicluster_hub.simulator.traces.synthetic import Lab, draw
from minicluster_hub.simulator.workload import Shape, TracedJob, workload

LAB = Setting(Shape(3, 4))
KNOWN: dict[str, Callable[[JobView], JobView]] = {
    "progress": lambda job: job,
    "time limits": lambda job: replace(job, remaining_s=None),
}
HOUR_S = 3600.0
NEAR_S = 60.0
"""Predicted starts are shown in minutes."""
HEADS = "policy       known         waited   told  wait p50 h  error p50 h  error p90 h  within 2x"
HEADS += "  by the told one  by the latest"


@dataclass
class Forecasts:
    """By job: the expected and the latest wait, predicted at its arrival, and the actual wait."""

    expected_s: dict[int, float] = field(default_factory=dict)
    latest_s: dict[int, float] = field(default_factory=dict)
    waits_s: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """Errors and waits in hours; the rest are shares of the jobs with a prediction."""

    wait_p50: float
    error_p50: float
    error_p90: float
    within_2x: float
    by_expected: float
    by_latest: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trace", type=Path, metavar="FILE")
    parser.add_argument("--policy", action="append", help="all of them, if none is named")
    chosen = parser.parse_args()
    jobs = read(chosen.trace) if chosen.trace else draw(Lab(load=0.8), 0)
    print(HEADS)
    targets = [target for name in chosen.policy or POLICIES for target in report(name, jobs)]
    close(targets)


def report(name: str, jobs: Sequence[TracedJob]) -> Iterator[Target]:
    """Yield targets: errors are below waits, so a prediction beats none, and jobs start by their latest."""
    for known, seen in KNOWN.items():
        forecasts = compare(name, jobs, seen)
        got = figures(forecasts)
        print(row(name, known, forecasts, got), flush=True)
        target = f"forecast_{name}_{known.replace(' ', '_')}"
        yield Target(f"{target}_error_over_wait", got.error_p50 / got.wait_p50, 1.0, True)
        if got.by_latest is not None:
            yield Target(f"{target}_started_by_latest", got.by_latest, 0.95, False)


def figures(forecasts: Forecasts) -> Figures:
    waits_s = forecasts.waits_s
    errors_s = {job_id: waits_s.get(job_id, 0.0) - wait_s for job_id, wait_s in forecasts.expected_s.items()}
    off_h = [abs(error_s) / HOUR_S for error_s in errors_s.values()]
    near = [
        0.5 <= (wait_s + NEAR_S) / (waits_s.get(job_id, 0.0) + NEAR_S) <= 2
        for job_id, wait_s in forecasts.expected_s.items()
    ]
    in_time = [waits_s.get(job_id, 0.0) <= wait_s + NEAR_S for job_id, wait_s in forecasts.latest_s.items()]
    return Figures(
        wait_p50=median(waits_s.values()) / HOUR_S,
        error_p50=median(off_h),
        error_p90=quantiles(off_h, n=10)[-1],
        within_2x=share(near),
        by_expected=share([error_s <= NEAR_S for error_s in errors_s.values()]),
        by_latest=share(in_time) if in_time else None,
    )


def share(met: Sequence[bool]) -> float:
    return sum(met) / len(met)


def row(name: str, known: str, forecasts: Forecasts, got: Figures) -> str:
    latest = "-" if got.by_latest is None else f"{100 * got.by_latest:.0f}% of {len(forecasts.latest_s)}"
    return (
        f"{name:<12} {known:<12} {len(forecasts.waits_s):>7} {len(forecasts.expected_s):>6}"
        f"  {got.wait_p50:>10.2f}"
        f"  {got.error_p50:>11.2f}  {got.error_p90:>11.2f}  {100 * got.within_2x:>8.0f}%"
        f"  {100 * got.by_expected:>14.0f}%  {latest:>13}"
    )


def compare(name: str, jobs: Sequence[TracedJob], seen: Callable[[JobView], JobView]) -> Forecasts:
    """Simulate the jobs, and predict a start at each arrival."""
    scheduler = SimulatedScheduler(LAB.topology(), policy(name), placement("locality"))
    offered = workload(jobs, LAB.shape, LAB.model, elastic=scheduler.policy.elastic)
    simulation = Simulation(scheduler, offered)
    forecasts, arrived = Forecasts(), set[int]()
    while (ended := simulation.advance()) is not None:
        waits_s = {job.job_id: job.started_at - job.submitted_at for job in ended}
        forecasts.waits_s |= {job_id: wait_s for job_id, wait_s in waits_s.items() if wait_s > 0}
        here = simulation.snapshot()
        new = {job.job_id for job in here.waiting} - arrived
        arrived |= {job.job_id for job in here.jobs}
        if new:
            ask(_seen(here, seen), scheduler, new, forecasts, bounded=name in BOUNDED)
    return forecasts


def ask(
    snapshot: Snapshot, scheduler: SimulatedScheduler, new: set[int], forecasts: Forecasts, *, bounded: bool
) -> None:
    def waits_s(starts: Mapping[int, float]) -> dict[int, float]:
        return {job_id: starts[job_id] - snapshot.now for job_id in new if job_id in starts}

    forecasts.expected_s |= waits_s(forecast(snapshot, scheduler.policy, scheduler.placement))
    if bounded:
        forecasts.latest_s |= waits_s(latest_starts(snapshot, scheduler.policy, scheduler.placement))


def _seen(snapshot: Snapshot, seen: Callable[[JobView], JobView]) -> Snapshot:
    """Return the snapshot with only what the service would know."""
    return replace(snapshot, jobs=tuple(seen(job) for job in snapshot.jobs))


if __name__ == "__main__":
    main()
