"""The model and the optimizer of a fault-tolerant job, in place of torch's DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import torch
import torchft.ddp
from torch.optim import Optimizer
from torchft.optim import OptimizerWrapper

from minicluster.errors import MiniclusterError
from minicluster.train.live.communication import live_communication
from minicluster.train.live.session import LiveSession
from minicluster.wire.comm import CommMethod


class ClosureNotTaken(MiniclusterError):
    """The optimizer of a fault-tolerant job was called with a closure."""


class LiveModel(torchft.ddp.DistributedDataParallel):
    """torchft's model, with gradients, or else weights, averaged as `--comm` says.

    torchft's own hook waits for each bucket, so that nothing is sent while gradients are computed, and raises
    if a peer dies.
    """

    def __init__(
        self, session: LiveSession, module: torch.nn.Module, method: CommMethod, **options: Any
    ) -> None:
        session.keep("model", module.load_state_dict, module.state_dict)
        communication = live_communication(session, module, method)
        # torchft takes its manager for the state of the hook below, and for nothing else.
        super().__init__(communication, module, **options)  # pyright: ignore[reportArgumentType]
        self._communication = communication

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if self.training and torch.is_grad_enabled():
            self._communication.before_forward()
        return super().forward(*inputs, **named)

    @staticmethod
    def _comm_hook(state, bucket):  # torch compares annotations with its classes, not with their names
        return state.average(bucket)  # pyright: ignore[reportAttributeAccessIssue]


class LiveOptimizer(OptimizerWrapper):
    """Takes a step only if all participating ranks have its gradients; otherwise the data are repeated."""

    def __init__(self, session: LiveSession, optimizer: Optimizer) -> None:
        self.optim = optimizer
        self._session = session
        session.keep("optimizer", optimizer.load_state_dict, optimizer.state_dict)
        session.optimizers.append(optimizer)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optim.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        if closure is not None:
            raise ClosureNotTaken(
                "In a fault-tolerant job, optimizer.step() takes no closure, which torch.optim.LBFGS needs.",
                "Call step() without a closure (use another optimizer), or leave --fault-tolerant out.",
            )
        return self.optim.step() if self._session.commit() else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "optim":
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __reduce__(self) -> tuple[Any, ...]:
        # In the notebook it becomes the cell's original optimizer again.
        return _itself, (self.optim,)


def _itself(value: Any) -> Any:
    return value
