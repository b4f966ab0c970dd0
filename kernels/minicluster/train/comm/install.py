"""Makes each DistributedDataParallel of this process communicate as `--comm` says."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from minicluster.errors import MiniclusterError
from minicluster.train.balance import rank as balance
from minicluster.train.comm import rank
from minicluster.train.comm.auto import AutoCommunication
from minicluster.train.comm.communication import Communication
from minicluster.wire.comm import AUTO, METHODS, CommMethod, comm_method

followed: weakref.WeakKeyDictionary[Any, Communication] = weakref.WeakKeyDictionary()
"""The models with their communication. A model's own attributes would be pickled with it."""
_BUCKET_MB = 5


class TwoWays(MiniclusterError):
    """mc.prepare asks for another way to communicate than the one that is followed already."""


class HookTwice(MiniclusterError):
    """A model has its communication from `--comm`, and the cell gives it another one."""


def install(text: str, given_by: str) -> None:
    """Follow `--comm` from now on. Raises CommWrong.

    given_by: the words of the cell's line that ask for it.
    """
    method = comm_method(text)
    kind: Any = DistributedDataParallel
    register = kind.register_comm_hook
    kind.__init__ = _with_communication(kind, method, register)
    kind.register_comm_hook = _refusing_second(register, given_by)


def follows(model: Any) -> bool:
    """Return whether a model communicates as `--comm` says."""
    return model in followed


def settle() -> None:
    """Make all models' weights equal on all ranks, if they are apart; all ranks have to call this."""
    for communication in list(followed.values()):
        communication.settle()


def _with_communication(kind: type, method: CommMethod, register: Callable[..., None]) -> Callable[..., None]:
    make: Callable[..., None] = kind.__init__
    signature = inspect.signature(make)

    @wraps(make)
    def made(model: Any, *args: Any, **named: Any) -> None:
        given = signature.bind(model, *args, **named).arguments
        if given.get("bucket_cap_mb") is None and not given.get("bucket_cap_mb_list"):
            named["bucket_cap_mb"] = _bucket_mb(method)
        make(model, *args, **named)
        rank.used = True
        if type(model) is kind and model.process_group.size() > 1:
            follow(model, method, register)

    return made


def follow(model: Any, method: CommMethod, register: Callable[..., None]) -> None:
    """Let a model communicate by a method. register: torch's own register_comm_hook."""
    communication = AutoCommunication(model) if method.name == AUTO else Communication(model, method)
    followed[model] = communication
    if balance.wanted():
        from minicluster.train.balance.weights import SampleWeights

        communication.weights = SampleWeights(communication.model, communication.peers)
    register(model, weakref.proxy(communication), _hook)
    model.register_forward_pre_hook(_before_forward, with_kwargs=True)


def _hook(state, bucket):  # torch compares annotations with its classes, not with their names
    return state.average(bucket)


@torch.compiler.disable
def _before_forward(model: Any, inputs: Any, named: Any) -> None:
    communication = followed.get(model)
    if communication and torch.is_grad_enabled():
        averages = model.require_backward_grad_sync
        communication.begin_forward((inputs, named), averages=averages, trains=model.training)


def _bucket_mb(method: CommMethod) -> int:
    return method.whole("bucket_mb") if "bucket_mb" in METHODS[method.name] else _BUCKET_MB


def _refusing_second(register: Callable[..., None], given_by: str) -> Callable[..., None]:
    @wraps(register)
    def refuse(model: Any, state: object, hook: Callable[..., Any]) -> None:
        if model in followed:
            raise HookTwice(
                f"The cell registers a communication hook, but {given_by} has given the model one.",
                f"Leave out {given_by.split()[0]}, or the hook.",
            )
        register(model, state, hook)

    return refuse
