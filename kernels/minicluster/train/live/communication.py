"""How the ranks of a fault-tolerant job communicate: as `--comm` says, among those that participate."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from minicluster.train.comm import losses
from minicluster.train.comm.auto import tell, weight_bytes
from minicluster.train.comm.choice import choose, sentence
from minicluster.train.comm.first_steps import CHOICE_AT, WARM_STEPS, FirstSteps, measured
from minicluster.train.comm.gradients import Bucket, GradFuture, Strategy, told_by_all
from minicluster.train.comm.strategies import strategy
from minicluster.train.comm.trial import Before, Trial, steps_weights_of
from minicluster.train.comm.weights import LocalSteps
from minicluster.train.live.session import LiveSession
from minicluster.wire.comm import AUTO, DDP, METHODS, CommMethod, comm_method


class LiveCommunication:
    """Follows a method from its start on. A rank that joins gets what the others follow, and its state."""

    def __init__(self, session: LiveSession, module: torch.nn.Module, method: CommMethod) -> None:
        self._session = session
        self._module = module
        self._method = method
        self._start = method.whole("start") if "start" in METHODS[method.name] else 0
        self._followed = CommMethod(DDP)
        self.strategy: Strategy = strategy(self._followed, module, session, _no_group)
        if not self._start:
            self.follow(method)

    def average(self, bucket: Bucket) -> GradFuture:
        """Average a bucket of gradients: DistributedDataParallel's hook."""
        return self.strategy.average(bucket)

    def before_forward(self) -> None:
        """Agree on the participating ranks; called before each forward pass of a training."""
        self._session.begin()
        if self._followed != self._method and self._session.step >= self._start:
            self.follow(self._method)
        self._begin_period()

    def follow(self, method: CommMethod) -> None:
        """Change over to a method; all participating ranks do so before the same step."""
        if isinstance(self.strategy, LocalSteps):
            self._session.train_together(self)
        self._followed = method
        self.strategy = strategy(method, self._module, self._session, _no_group)
        if isinstance(self.strategy, LocalSteps):
            self._session.train_apart(self)

    def _begin_period(self) -> None:
        if isinstance(self.strategy, LocalSteps):
            self.strategy.begin_period()

    # Of ranks that train apart, see session.Apart.

    @property
    def is_due(self) -> bool:
        return isinstance(self.strategy, LocalSteps) and self.strategy.is_due

    @property
    def apart(self) -> int:
        return self.strategy.apart if isinstance(self.strategy, LocalSteps) else 0

    def means(self) -> Any:
        assert isinstance(self.strategy, LocalSteps)  # noqa: S101 - the others never part
        return self.strategy.means()

    def take(self, means: Any) -> None:
        assert isinstance(self.strategy, LocalSteps)  # noqa: S101 - as above
        self.strategy.take(means)

    # For a rank that joins.

    def state_dict(self) -> dict[str, Any]:
        local = self.strategy.state_dict() if isinstance(self.strategy, LocalSteps) else None
        return {"followed": str(self._followed), "step": self._session.step, "local": local}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["followed"] != str(self._followed):
            self.follow(comm_method(state["followed"]))
        if isinstance(self.strategy, LocalSteps):
            self.strategy.load_state_dict(state["local"])
            self._session.goes_on_apart(state["step"])


class LiveAuto(LiveCommunication):
    """`--comm auto`: as AutoCommunication, but a rank may be lost or join before any step.

    What the ranks tell each other in a step counts if the step does: so it changes the next one. _next: what
    to follow then, and whether the trial has failed.
    """

    def __init__(self, session: LiveSession, module: torch.nn.Module) -> None:
        super().__init__(session, module, CommMethod(DDP))
        self._first: FirstSteps | None = FirstSteps(module, session)
        self._device = self._first.device
        self._losses: list[float] = []
        self._before: list[float] = []
        self._trial: Trial | None = None
        self._found: list[float] = []
        self._told: tuple[list[list[float]], list[float]] | None = None
        self._next: tuple[CommMethod, bool] | None = None
        losses.last_loss()
        session.after_commit(self._committed)

    def before_forward(self) -> None:
        self._session.begin()
        if self._next:
            self._change_over(*self._next)
        step = self._session.step
        if self._first:
            self.strategy = self._first.strategy_of(step)
            if step >= CHOICE_AT:
                times = told_by_all(self._session, self._first.own(), self._device)
                self._told = times, self._losses_of_all(CHOICE_AT)
        elif self._trial and self._trial.period == 1 and step >= self._trial.first + self._trial.steps:
            self._told = [], self._losses_of_all(self._trial.steps)
        self._begin_period()

    def average(self, bucket: Bucket) -> GradFuture:
        future = super().average(bucket)
        if self._first and bucket.is_last():
            self._first.computed(self._session.step)
        return future

    def means(self) -> Any:
        told = self._losses_of_all(self._trial.period) if self._trial else []
        return super().means(), told

    def take(self, means: Any) -> None:
        own, told = means
        super().take(own)
        self._losses = []
        self._found += told
        if self._trial and len(self._found) >= self._trial.steps:
            self._judge(self._trial, self._found)

    def _committed(self, taken: bool) -> None:
        told, self._told = self._told, None
        if not taken:
            if self._first:
                self._first.pause()
            return
        loss = losses.last_loss().value
        if loss is not None and (self._first or self._trial):
            self._losses.append(float(loss))
        if told and self._first:
            self._choose(*told)
        elif told and self._trial:
            self._judge(self._trial, told[1])

    def _choose(self, times: list[list[float]], before: list[float]) -> None:
        self._first, self._losses, self._before = None, [], before[WARM_STEPS:]
        found, place = measured(times), self._session.place
        if found is None:
            tell(place, "No rank made all of the first steps; plain DDP goes on: --comm ddp.")
            return
        chosen = choose(found, CHOICE_AT + 1)
        tell(place, sentence(found, chosen, weight_bytes(self._module), None))
        if chosen.method.name != DDP:
            self._next = chosen.method, False

    def _judge(self, trial: Trial, found: list[float]) -> None:
        self._losses, self._found = [], []
        if trial.failed(found):
            self._next = CommMethod(DDP), True
            tell(self._session.place, trial.failure(found))
        else:
            self._trial = None

    def _change_over(self, method: CommMethod, failed: bool) -> None:
        trial, self._trial, self._next = self._trial, None, None
        if trial and failed:
            trial.before.restore(self._module, self._optimizers)
        else:
            before = Before.of(self._module, self._optimizers)
            self._trial = Trial(self._session.step, method, self._before, before)
        self.follow(method)
        # Ranks that were apart have not agreed on this step yet.
        self._session.begin()

    @property
    def _optimizers(self) -> list[Optimizer]:
        return [one for one in self._session.optimizers if steps_weights_of(one, self._module)]

    def _losses_of_all(self, count: int) -> list[float]:
        """Return the last `count` steps' losses, each the mean of the ranks that made all of them."""
        own = self._losses[-count:]
        row = [float(len(own)), *own, *[0.0] * (count - len(own))]
        table = told_by_all(self._session, row, self._device)
        most = int(max(row[0] for row in table))
        return losses.means([row[1 : most + 1] for row in table if row[0] == most])

    def state_dict(self) -> dict[str, Any]:
        auto = {"first": self._first is None, "trial": self._trial, "found": self._found}
        following = self._next and (str(self._next[0]), self._next[1])
        return {**super().state_dict(), **auto, "next": following, "before": self._before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["first"]:
            self._first = None
        self._losses = []
        self._trial, self._found, self._before = state["trial"], list(state["found"]), state["before"]
        following = state["next"]
        self._next = following and (comm_method(following[0]), following[1])


def live_communication(
    session: LiveSession, module: torch.nn.Module, method: CommMethod
) -> LiveCommunication:
    """Return what a model's ranks communicate by, known to the ranks that will join."""
    made = LiveAuto(session, module) if method.name == AUTO else LiveCommunication(session, module, method)
    session.keep("comm", made.load_state_dict, made.state_dict)
    return made


def _no_group() -> None:
    """Return no process group: a fault-tolerant job has none."""
