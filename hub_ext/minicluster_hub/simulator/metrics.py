"""The figures of a replay, and their mean and spread over several replays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median, stdev

from minicluster_hub.simulator.simulated_job import Outcome

UNITS: Mapping[str, str] = {
    "average_s": "completion time (end minus submission), average",
    "median_s": "completion time, median",
    "p99_s": "completion time that 99 % of the jobs stay within",
    "makespan_s": "first submission to last end",
    "jain_sizes": "Jain's index of what the jobs of each size had (all their durations alone / all their "
    "completion times): 1 if small and large ones were slowed down alike",
    "jain_owners": "the same of each owner's jobs",
    "longest_wait_s": "longest wait of a job without a break",
    "restarts": "changes of slots per job",
    "crossed": "share of the time with slots that jobs were on several nodes",
    "needless": "share of the time with slots that jobs were on more nodes than so many slots need",
    "network_bytes": "bytes between nodes",
    "busy": "share of the slots' time that jobs held, first submission to last end",
}


@dataclass(frozen=True, slots=True)
class ReplayMetrics:
    """The figures of one replay; UNITS says what each is."""

    average_s: float
    median_s: float
    p99_s: float
    makespan_s: float
    jain_sizes: float
    jain_owners: float
    longest_wait_s: float
    restarts: float
    crossed: float
    needless: float
    network_bytes: float
    busy: float


def measure(outcomes: Sequence[Outcome], slots: int) -> ReplayMetrics:
    """Return the figures of a replay of at least one job on a cluster with that many slots."""
    completions = sorted(outcome.completion_s for outcome in outcomes)
    makespan_s = max(job.ended_at for job in outcomes) - min(job.submitted_at for job in outcomes)
    held_s = sum(job.held_s for job in outcomes)
    return ReplayMetrics(
        average_s=fmean(completions),
        median_s=median(completions),
        p99_s=completions[ceil(0.99 * len(completions)) - 1],
        makespan_s=makespan_s,
        jain_sizes=_evenness(outcomes, lambda job: job.slots),
        jain_owners=_evenness(outcomes, lambda job: job.owner),
        longest_wait_s=max(job.longest_wait_s for job in outcomes),
        restarts=fmean(job.restarts for job in outcomes),
        crossed=sum(job.crossed_s for job in outcomes) / held_s,
        needless=sum(job.needless_s for job in outcomes) / held_s,
        network_bytes=sum(job.network_bytes for job in outcomes),
        busy=sum(job.slot_s for job in outcomes) / (makespan_s * slots),
    )


def _evenness(outcomes: Iterable[Outcome], group: Callable[[Outcome], Hashable]) -> float:
    """Return Jain's index of the groups' speedups. A mean of ratios would show only the shortest jobs."""
    alone_s: dict[Hashable, float] = defaultdict(float)
    taken_s: dict[Hashable, float] = defaultdict(float)
    for job in outcomes:
        alone_s[group(job)] += job.alone_s
        taken_s[group(job)] += job.completion_s
    return jain(alone_s[key] / taken_s[key] for key in alone_s)


def jain(shares: Iterable[float]) -> float:
    """Return (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has everything (Jain et al., 1984)."""
    listed = list(shares)
    return sum(listed) ** 2 / (len(listed) * sum(share * share for share in listed))


@dataclass(frozen=True, slots=True)
class MeanSpread:
    """spread: standard deviation over the replays; 0 for a single one."""

    mean: float
    spread: float


def over_runs(runs: Sequence[ReplayMetrics]) -> dict[str, MeanSpread]:
    """Return mean and spread of each figure."""
    values = {name: [getattr(run, name) for run in runs] for name in UNITS}
    return {
        name: MeanSpread(fmean(found), stdev(found) if len(found) > 1 else 0.0)
        for name, found in values.items()
    }
