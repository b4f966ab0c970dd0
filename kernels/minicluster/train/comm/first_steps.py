"""The first steps of a training under `--comm auto`: exactly those of plain DDP, some of them timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from minicluster.train.comm.choice import Measured
from minicluster.train.comm.gradients import Bucket, ExactGradients, HalfGradients, Peers, PowerSGD, Strategy
from minicluster.train.comm.timing import StepTimes, TimedGradients, typical
from minicluster.train.comm.weights import LocalSteps, OuterStep

WARM_STEPS, TIMED_STEPS, PLAIN_STEPS = 2, 5, 4
CHOICE_AT = WARM_STEPS + TIMED_STEPS + PLAIN_STEPS
"""The first step that is made in the chosen way."""
_WAYS = ("bf16", "weights", "powersgd")


class FirstSteps:
    """A rank's times of its first steps. power: None if there is no PowerSGD."""

    def __init__(self, module: torch.nn.Module, peers: Peers, power: PowerSGD | None = None) -> None:
        self.device = next(module.parameters()).device
        self._module = module
        self._peers = peers
        self._power = power
        self._exact = ExactGradients(peers)
        self._timed: TimedGradients | None = None
        self._plain = StepTimes()

    def strategy_of(self, step: int) -> Strategy:
        """Return how a step's gradients are averaged."""
        if not WARM_STEPS <= step < WARM_STEPS + TIMED_STEPS:
            return self._exact
        if self._timed is None:
            self._timed = self._timing()
        return self._timed

    def computed(self, step: int) -> None:
        """Called at the end of each step's backward pass."""
        if step == WARM_STEPS + TIMED_STEPS:
            self._plain.restart()
        self._plain.ended()

    def pause(self) -> None:
        """Do not count the time until the next step."""
        self._plain.pause()
        if self._timed:
            self._timed.pause()

    def own(self) -> list[float]:
        """Return what this rank measured, for `measured`."""
        timed = self._timed
        if timed is None or not timed.compute_s or not self._plain.seconds:
            return [0.0] * (3 + len(_WAYS))
        of_ways = (typical(timed.others_s[way]) if way in timed.others_s else 0.0 for way in _WAYS)
        return [typical(timed.compute_s), typical(self._plain.seconds), typical(timed.exact_s), *of_ways]

    def _timing(self) -> TimedGradients:
        half = HalfGradients(self._peers, torch.bfloat16)
        weights = LocalSteps(self._module, self._peers, 1, OuterStep(), torch.bfloat16)

        def average_weights(_: Sequence[Bucket]) -> None:
            weights.part()
            weights.means()

        ways: dict[str, Callable[[Sequence[Bucket]], None]] = {
            "bf16": partial(_average_each, half),
            "weights": average_weights,
        }
        if self._power:
            ways["powersgd"] = self._power.average_all
        return TimedGradients(self._peers, self.device, ways)


def measured(table: Sequence[Sequence[float]]) -> Measured | None:
    """Return what the ranks measured; None if no rank was there in all of the first steps.

    table: `own` of each rank. Of the steps, the slowest rank's time counts; of communication, that of the
    rank that waited least for others.
    """
    rows = [row for row in table if row[0]]
    if not rows:
        return None
    compute, plain, *communication = zip(*rows, strict=True)
    exact, bf16, weights, powersgd = map(min, communication)
    return Measured(max(compute), max(plain), exact, bf16, powersgd or None, weights)


def _average_each(strategy: HalfGradients, buckets: Sequence[Bucket]) -> None:
    for future in [strategy.average(bucket) for bucket in buckets]:
        future.wait()
