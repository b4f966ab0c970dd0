"""Jobs drawn at random like those of a small lab: sizes and durations as on Philly (Jeon et al., ATC 2019).

Arrivals are Poisson, or all at once; users are Zipf distributed; time limits are a multiple of the duration.
The same seed draws the same jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import log
from random import Random

from minicluster_hub.simulator.workload import TracedJob

_SIZES = {1: 0.82, 2: 0.04, 4: 0.12, 8: 0.02}
"""Share of the jobs by GPUs. On Philly 94 % have one GPU; its small groups, which resemble a lab, have more
jobs with several."""

_LOG_DURATION = {1: (6.98, 1.84), 2: (9.37, 3.14), 4: (9.29, 2.63), 8: (9.78, 2.66)}
"""Mean and deviation of the logarithm of the seconds, by GPUs."""


@dataclass(frozen=True, slots=True)
class Lab:
    """The distribution of the jobs.

    load: the slots that the jobs need on average, as a share of `slots`; 0: all jobs arrive at once.
    shortest_s, longest_s: durations outside of these are drawn again.
    limit_times: a time limit is the duration times a number between these.
    """

    jobs: int = 300
    slots: int = 12
    load: float = 1.0
    users: int = 8
    shortest_s: float = 60.0
    longest_s: float = 2 * 86_400.0
    limit_times: tuple[float, float] = (1.0, 5.0)


def draw(lab: Lab, seed: int) -> list[TracedJob]:
    """Return a lab's jobs in the order of their arrival."""
    chance = Random(seed)
    sizes = [size for size in _SIZES if size <= lab.slots]
    gangs = chance.choices(sizes, [_SIZES[size] for size in sizes], k=lab.jobs)
    durations = [_duration_s(size, lab, chance) for size in gangs]
    users = chance.choices(range(lab.users), [1 / rank for rank in range(1, lab.users + 1)], k=lab.jobs)
    slot_s = sum(size * duration for size, duration in zip(gangs, durations, strict=True))
    gap_s = slot_s / lab.jobs / (lab.slots * lab.load) if lab.load else 0.0
    arrivals = accumulate(-gap_s * log(1 - chance.random()) for _ in range(lab.jobs))
    return [
        TracedJob(number, f"u{user}", arrival, duration, size, duration * chance.uniform(*lab.limit_times))
        for number, (user, arrival, duration, size) in enumerate(
            zip(users, arrivals, durations, gangs, strict=True)
        )
    ]


def _duration_s(size: int, lab: Lab, chance: Random) -> float:
    while True:
        drawn_s = chance.lognormvariate(*_LOG_DURATION[size])
        if lab.shortest_s <= drawn_s <= lab.longest_s:
            return drawn_s
