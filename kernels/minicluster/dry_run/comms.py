"""Changes how the models of a virtual rank communicate, between two steps, to time each way."""

from __future__ import annotations

import inspect
import weakref
from functools import wraps
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from minicluster.train.comm import install, rank
from minicluster.train.comm.communication import Communication
from minicluster.wire.comm import ASYNC, AUTO, CommMethod, comm_method

TIMED: dict[str, CommMethod] = {
    "alone": CommMethod("localsgd", {"period": 100_000}),
    "ddp": CommMethod("ddp"),
    "average": CommMethod("localsgd", {"period": 1}),
    "bf16": CommMethod("bf16"),
    "powersgd": CommMethod("powersgd"),
}
"""What is timed, and how it is done, in this order. The other ways are made of the same parts."""


class ModelsCommunication:
    """The communication of all DistributedDataParallel models that the cell makes.

    own_hook: the cell has given one its own. Then nothing is changed.
    """

    def __init__(self, comm: str | None) -> None:
        self.own_hook = False
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._followed: weakref.WeakKeyDictionary[Any, Communication] = install.followed
        self._leave_out_async()
        if comm is None or comm == AUTO or comm_method(comm).name == ASYNC:
            self._watch()
        else:
            rank.follow(comm)

    @property
    def distributed(self) -> bool:
        return bool(self._made) or bool(self._followed)

    def switch(self, name: str) -> None:
        """Let all models communicate in one of TIMED from the next step on."""
        for communication in list(self._followed.values()):
            communication.follow_from_now(TIMED[name])

    def _leave_out_async(self) -> None:
        """Let mc.prepare(strategy="async") change nothing.

        A virtual group has no server of weights: the steps are timed as those of plain DDP.
        """
        follow = rank.follow_strategy

        def followed(name: str, period: int | None) -> None:
            if name != ASYNC:
                follow(name, period)

        rank.follow_strategy = followed

    def _watch(self) -> None:
        """Follow models as they are: nothing of them changes but that their hook can be another one."""
        kind: Any = DistributedDataParallel
        make, register = kind.__init__, kind.register_comm_hook

        @wraps(make)
        def made(model: Any, *args: Any, **named: Any) -> None:
            make(model, *args, **named)
            self._made.add(model)
            model.register_forward_pre_hook(before_first_forward)

        def before_first_forward(model: Any, _inputs: Any) -> None:
            if model not in self._followed and not self.own_hook:
                install.follow(model, CommMethod("ddp"), register)

        @wraps(register)
        def registered(model: Any, state: object, hook: Any) -> None:
            self.own_hook = True
            register(model, state, hook)

        made.__signature__ = inspect.signature(make)  # type: ignore[attr-defined]
        kind.__init__, kind.register_comm_hook = made, registered
