"""What an optimizer has of its own: torch's pickle of one is its groups and state, and drops the rest."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

_OF_SCHEDULERS = {"step", "_opt_called"}
"""What a scheduler sets on its optimizer, to see whether it was called before."""


def own_attributes(obj: object) -> dict[str, Any]:
    """Return what an optimizer's class keeps beside what torch keeps in each; {} for any other object.

    LBFGS keeps its list of parameters there, a class of the notebook its counts.
    """
    torch = sys.modules.get("torch")
    optimizer = getattr(getattr(torch, "optim", None), "Optimizer", None)
    if optimizer is None or not isinstance(obj, optimizer):
        return {}
    if type(obj).__getstate__ is not optimizer.__getstate__:
        return {}
    return {name: value for name, value in vars(obj).items() if name not in _of_torch(optimizer)}


def reduce_optimizer(obj: Any) -> tuple[Any, ...] | None:
    """Reduce an optimizer together with what its class keeps; None for one that has nothing of the kind."""
    own = own_attributes(obj)
    if not own:
        return None
    made, args, state, *more = obj.__reduce_ex__(5)
    return made, args, {**state, **own}, *more


@cache
def _of_torch(optimizer: Any) -> frozenset[str]:
    """Return the names of what torch keeps in any optimizer, in this release of it."""
    bare = optimizer.__new__(optimizer)
    optimizer.__setstate__(bare, {"defaults": {}, "state": {}, "param_groups": []})
    made = optimizer([sys.modules["torch"].zeros(1)], {})
    return frozenset({*vars(bare), *vars(made), *_OF_SCHEDULERS})
