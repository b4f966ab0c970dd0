"""`--comm auto`: times the first steps of a training, chooses a way to communicate, and tries it.

All ranks make the same steps in the same order: times and losses are exchanged before each decision, so that
all decide alike.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from minicluster.train.comm import links, losses
from minicluster.train.comm.choice import choose, sentence
from minicluster.train.comm.communication import Communication
from minicluster.train.comm.first_steps import CHOICE_AT, WARM_STEPS, FirstSteps, measured
from minicluster.train.comm.gradients import Bucket, GradFuture, PowerSGD, told_by_all
from minicluster.train.comm.trial import Before, Optimizers, Trial
from minicluster.train.comm.weights import LocalSteps
from minicluster.wire.comm import DDP, CommMethod


class AutoCommunication(Communication):
    """Plain DDP for CHOICE_AT steps, some of them timed; then what they made it choose, on trial."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, CommMethod(DDP))
        power = PowerSGD(lambda: self.model.process_group, CommMethod("powersgd").whole("rank"))
        self._first: FirstSteps | None = FirstSteps(model.module, self.peers, power)
        self._device = self._first.device
        self._losses: list[torch.Tensor] = []
        self._optimizers = Optimizers(model.module)
        self._trial: Trial | None = None
        losses.last_loss()

    def before_forward(self) -> None:
        if self._first:
            if self.steps < CHOICE_AT:
                self.strategy = self._first.strategy_of(self.steps)
            else:
                self._decide(self._first)
        elif self._trial and self.steps >= self._trial.first + self._trial.steps:
            self._judge(self._trial)
        if isinstance(self.strategy, LocalSteps):
            self.strategy.before_forward()

    def average(self, bucket: Bucket) -> GradFuture:
        step = self.steps
        future = super().average(bucket)
        if bucket.is_last():
            if self._first:
                self._first.computed(step)
            loss = losses.last_loss().value
            if loss is not None and (self._first or self._trial):
                self._losses.append(loss)
        return future

    def settle(self) -> bool:
        # The next step may come after a pause: a session's next cell.
        if self._first:
            self._first.pause()
        return super().settle()

    def _decide(self, first: FirstSteps) -> None:
        self._first = None
        found = measured(told_by_all(self.peers, first.own(), self._device))
        assert found is not None  # noqa: S101 - all ranks made all steps
        chosen = choose(found, CHOICE_AT)
        tell(
            self.peers.place, sentence(found, chosen, weight_bytes(self.model.module), self._slowest_gbit_s())
        )
        if chosen.method.name != DDP:
            before = Before.of(self.model.module, self._optimizers.found)
            self._trial = Trial(self.steps, chosen.method, self._losses_of_all()[WARM_STEPS:], before)
            self.follow(chosen.method)
        self._losses = []
        self._optimizers.close()

    def _slowest_gbit_s(self) -> float | None:
        group = self.model.process_group
        nodes = [int(row[0]) for row in told_by_all(self.peers, [_own_node()], self._device)]
        leaders = [nodes.index(node) for node in sorted(set(nodes))]
        own = [link.gbit_s for link in links.own_links(group, leaders)]
        table = told_by_all(self.peers, [min(own, default=0.0)], self._device)
        return min((row[0] for row in table if row[0]), default=None)

    def _judge(self, trial: Trial) -> None:
        self._trial = None
        found, self._losses = self._losses_of_all(), []
        if trial.failed(found):
            trial.before.restore(self.model.module, self._optimizers.found)
            self.follow(CommMethod(DDP))
            tell(self.peers.place, trial.failure(found))

    def _losses_of_all(self) -> list[float]:
        """Return the steps' losses so far, each the mean of all ranks; none if the ranks saw none."""
        own = [float(loss) for loss in self._losses]
        counts = {int(row[0]) for row in told_by_all(self.peers, [len(own)], self._device)}
        if len(counts) > 1 or not own:
            return []
        return losses.means(told_by_all(self.peers, own, self._device))


def weight_bytes(module: torch.nn.Module) -> int:
    return sum(weight.nbytes for weight in module.parameters() if weight.requires_grad)


def tell(place: int, text: str) -> None:
    """Print a sentence on the rank in the first place."""
    if place == 0:
        print(f"--comm auto: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _own_node() -> int:
    return int(os.environ.get("GROUP_RANK", "0"))
