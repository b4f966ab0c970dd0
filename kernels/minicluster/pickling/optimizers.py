"""Attributes of optimizers that torch does not pickle: torch writes only their groups and state."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

_OF_SCHEDULERS = {"step", "_opt_called"}
"""Attributes that a scheduler sets on its optimizer, to check the order of calls."""


def own_attributes(obj: object) -> dict[str, Any]:
    """Return the attributes that an optimizer's own class adds to those of torch's base class.

    LBFGS has its list of parameters there, for example. Returns {} for an object that is no optimizer.
    """
    torch = sys.modules.get("torch")
    optimizer = getattr(getattr(torch, "optim", None), "Optimizer", None)
    if optimizer is None or not isinstance(obj, optimizer):
        return {}
    if type(obj).__getstate__ is not optimizer.__getstate__:
        return {}
    return {name: value for name, value in vars(obj).items() if name not in _of_torch(optimizer)}


def reduce_optimizer(obj: Any) -> tuple[Any, ...] | None:
    """Reduce an optimizer with the attributes of its own class; None if it has none."""
    own = own_attributes(obj)
    if not own:
        return None
    made, args, state, *more = obj.__reduce_ex__(5)
    return made, args, {**state, **own}, *more


@cache
def _of_torch(optimizer: Any) -> frozenset[str]:
    """Return the names of the attributes that this release of torch sets on every optimizer."""
    bare = optimizer.__new__(optimizer)
    optimizer.__setstate__(bare, {"defaults": {}, "state": {}, "param_groups": []})
    made = optimizer([sys.modules["torch"].zeros(1)], {})
    return frozenset({*vars(bare), *vars(made), *_OF_SCHEDULERS})
