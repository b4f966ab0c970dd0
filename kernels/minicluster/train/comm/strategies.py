"""Makes the strategy that a `--comm` names, for one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minicluster.train.comm.asynchronous import AsyncSteps
from minicluster.train.comm.gradients import ExactGradients, HalfGradients, Peers, PowerSGD, Strategy
from minicluster.train.comm.weights import LocalSteps, OuterStep
from minicluster.wire.comm import ASYNC, CommMethod

_SENT = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def strategy(method: CommMethod, model: torch.nn.Module, peers: Peers, group: Callable[[], Any]) -> Strategy:
    """Return the strategy for a model. group: returns its process group, for torch's own functions."""
    if method.name in ("bf16", "fp16"):
        return HalfGradients(peers, _SENT[method.name])
    if method.name == "powersgd":
        return PowerSGD(group, method.whole("rank"))
    if method.name in ("localsgd", "diloco"):
        outer = OuterStep()
        if method.name == "diloco":
            outer = OuterStep(method.number("lr"), method.number("momentum"))
        return LocalSteps(model, peers, method.whole("period"), outer, _SENT[str(method["sent"])])
    if method.name == ASYNC:
        return AsyncSteps(model, peers, method.whole("period"), _SENT[str(method["sent"])], group)
    return ExactGradients(peers)
