"""`--comm auto`: times the first steps of a training, chooses a way to communicate, and tries it.

All ranks make the same steps in the same order: times and losses are exchanged before each decision, so that
all decide alike. The first steps are exactly those of plain DDP.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from minicluster.train.comm import links, losses
from minicluster.train.comm.choice import Expected, Measured, choose
from minicluster.train.comm.communication import Communication
from minicluster.train.comm.gradients import (
    Bucket,
    ExactGradients,
    GradFuture,
    HalfGradients,
    PowerSGD,
    told_by_all,
)
from minicluster.train.comm.timing import StepTimes, TimedGradients, typical
from minicluster.train.comm.trial import Before, Trial
from minicluster.train.comm.weights import LocalSteps, OuterStep
from minicluster.train.metrics import step_times
from minicluster.wire.comm import METHODS, CommMethod

WARM_STEPS, TIMED_STEPS, PLAIN_STEPS = 2, 5, 4
CHOICE_AT = WARM_STEPS + TIMED_STEPS + PLAIN_STEPS
"""The first step that is made in the chosen way."""


_undecided: weakref.WeakSet[AutoCommunication] = weakref.WeakSet()


def _saw(optimizer: Optimizer) -> None:
    for communication in tuple(_undecided):
        communication.saw(optimizer)


class AutoCommunication(Communication):
    """Plain DDP for CHOICE_AT steps, some of them timed; then what they made it choose, on trial."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, CommMethod("ddp"))
        self._device = next(model.module.parameters()).device
        self._timed: TimedGradients | None = None
        self._plain = StepTimes()
        self._losses: list[torch.Tensor] = []
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._trial: Trial | None = None
        self._decided = False
        losses.last_loss()
        _undecided.add(self)
        if _saw not in step_times.watchers:
            step_times.watchers.append(_saw)

    def before_forward(self) -> None:
        if self.steps == WARM_STEPS and self._timed is None:
            self.strategy = self._timed = self._timing()
        elif self.steps == WARM_STEPS + TIMED_STEPS and self.strategy is self._timed:
            self.strategy = ExactGradients(self.peers)
            self._plain.restart()
        elif self.steps == CHOICE_AT and not self._decided:
            self._decided = True
            self._decide()
        elif self._trial and self.steps >= self._trial.first + self._trial.steps:
            self._judge(self._trial)
        if isinstance(self.strategy, LocalSteps):
            self.strategy.before_forward()

    def average(self, bucket: Bucket) -> GradFuture:
        future = super().average(bucket)
        if bucket.is_last():
            self._plain.ended()
            loss = losses.last_loss().value
            if loss is not None and (not self._decided or self._trial):
                self._losses.append(loss)
        return future

    def _timing(self) -> TimedGradients:
        half = HalfGradients(self.peers, torch.bfloat16)
        power = PowerSGD(lambda: self.model.process_group, CommMethod("powersgd").whole("rank"))
        weights = LocalSteps(self.model.module, self.peers, 1, OuterStep(), torch.bfloat16)

        def average_weights(_: Sequence[Bucket]) -> None:
            weights.part()
            weights.means()

        others = {
            "bf16": partial(_average_each, half),
            "powersgd": power.average_all,
            "weights": average_weights,
        }
        return TimedGradients(self.peers, self._device, others)

    def settle(self) -> bool:
        # The next step may come after a pause: a session's next cell.
        self._plain.pause()
        if self._timed:
            self._timed.pause()
        return super().settle()

    def saw(self, optimizer: Optimizer) -> None:
        """Remember an optimizer that has stepped if it has weights of this model."""
        if optimizer not in self._optimizers:
            own = {id(weight) for weight in self.model.module.parameters()}
            if any(id(weight) in own for group in optimizer.param_groups for weight in group["params"]):
                self._optimizers.add(optimizer)

    def _decide(self) -> None:
        _undecided.discard(self)
        measured = self._measured()
        chosen = choose(measured, CHOICE_AT)
        self._tell(_choice_sentence(measured, chosen, self._bytes, self._slowest_link()))
        self._timed = None
        if chosen.method.name != "ddp":
            before = Before(self.model.module, self._optimizers)
            options = METHODS[chosen.method.name]
            period = chosen.method.whole("period") if "period" in options else 1
            self._trial = Trial(self.steps, period, self._losses_of_all()[WARM_STEPS:], before)
            self.follow(chosen.method)
        self._losses = []

    def _measured(self) -> Measured:
        """Return the times of the slowest rank; of communication those of the rank that waited least."""
        timed = self._timed
        assert timed is not None  # noqa: S101 - it is set before
        own = [typical(timed.compute_s), typical(self._plain.seconds), typical(timed.exact_s)]
        own += [typical(timed.others_s[name]) for name in ("bf16", "powersgd", "weights")]
        compute, plain, *communication = zip(*told_by_all(self.peers, own, self._device), strict=True)
        return Measured(max(compute), max(plain), *map(min, communication))

    def _slowest_link(self) -> links.Link | None:
        group = self.model.process_group
        nodes = [int(row[0]) for row in told_by_all(self.peers, [_own_node()], self._device)]
        leaders = [nodes.index(node) for node in sorted(set(nodes))]
        own = {link.second: link for link in links.own_links(group, leaders) if link.first == group.rank()}
        rates = [own[peer].gbit_s if peer in own else 0.0 for peer in range(group.size())]
        table = told_by_all(self.peers, rates, self._device)
        found = [
            links.Link(nodes[first], nodes[second], rate)
            for first, row in enumerate(table)
            for second, rate in enumerate(row)
            if rate
        ]
        return min(found, key=lambda link: link.gbit_s) if found else None

    def _judge(self, trial: Trial) -> None:
        self._trial = None
        found, self._losses = self._losses_of_all(), []
        if not trial.failed(found):
            return
        trial.before.restore()
        self.follow(CommMethod("ddp"))
        self._tell(
            f"The loss behaved otherwise than with plain DDP: {found[-1]:.4g} after a trial of {trial.steps} "
            f"steps, {trial.losses[-1]:.4g} before. Model and optimizer are as before the trial; plain DDP "
            "goes on: --comm ddp."
        )

    def _losses_of_all(self) -> list[float]:
        """Return the steps' losses so far, each the mean of all ranks; none if the ranks saw none."""
        own = [float(loss) for loss in self._losses]
        counts = {int(row[0]) for row in told_by_all(self.peers, [len(own)], self._device)}
        if len(counts) > 1 or not own:
            return []
        table = told_by_all(self.peers, own, self._device)
        return [sum(column) / len(table) for column in zip(*table, strict=True)]

    @property
    def _bytes(self) -> int:
        return sum(weight.nbytes for weight in self.model.module.parameters() if weight.requires_grad)

    def _tell(self, sentence: str) -> None:
        if self.peers.place == 0:
            print(f"--comm auto: {sentence}", file=sys.stderr, flush=True)  # noqa: T201


def _average_each(strategy: HalfGradients, buckets: Sequence[Bucket]) -> None:
    for future in [strategy.average(bucket) for bucket in buckets]:
        future.wait()


def _choice_sentence(measured: Measured, chosen: Expected, size: int, slowest: links.Link | None) -> str:
    """Return what was measured, what was chosen for it, and what is expected."""
    link = f", slowest link {slowest.gbit_s:.2g} Gbit/s" if slowest else ""
    found = (
        f"A step computes for {_ms(measured.compute)} and takes {_ms(measured.plain)} in plain DDP "
        f"({size / 1e6:.3g} MB of gradients{link})."
    )
    if chosen.method.name == "ddp":
        return f"{found} Plain DDP it stays: nothing else would be much faster."
    expected = f"Chosen for about {_ms(chosen.step_s)} a step"
    return f"{found} {expected}: --comm {chosen.method}, which also repeats this run."


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _own_node() -> int:
    return int(os.environ.get("GROUP_RANK", "0"))
