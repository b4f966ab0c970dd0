"""Sends by value what Python's own tools make of a notebook's functions and types: lru_cache, NewType, ...

pickle would write only a name, which a rank cannot find. The object that is rebuilt there has a new lock and
an empty cache.
"""

from __future__ import annotations

import functools
import operator
import sys
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any

from minicluster.pickling.refusal import KindRefused, plain_part
from minicluster.pickling.tensors import itself

Reduced = tuple[Any, ...]

_CACHED = type(functools.lru_cache(len))
_DISPATCHES = functools.singledispatch(len).__code__  # type: ignore[attr-defined]
_TYPE_VARIABLES = (typing.ParamSpec, typing.TypeVarTuple)
NAMED = (_CACHED, typing.NewType, *_TYPE_VARIABLES)
"""Types whose objects pickle writes as a name, as it does with functions and classes."""
_COMPILED = (
    "a function that torch.compile made belongs to one process; send the original function, "
    "and call torch.compile inside the cell"
)


def reduce_by_value(obj: Any) -> Reduced | None:
    """Return what `__reduce__` should return; None for objects that cloudpickle handles correctly."""
    if (inside := plain_part(obj)) is not None:
        return itself, (inside,)
    if isinstance(obj, functools.cached_property):
        state = {name: value for name, value in vars(obj).items() if name != "lock"}
        return make_cached_property, (type(obj),), state
    if isinstance(obj, FunctionType):
        if "_torchdynamo_orig_callable" in vars(obj) and not _is_found_by_name(obj):
            raise KindRefused(obj, _COMPILED)
        if obj.__code__ is not _DISPATCHES or _is_found_by_name(obj):
            return None
        return _reduce_dispatch(obj)
    if not isinstance(obj, NAMED) or _is_found_by_name(obj):
        return None
    if isinstance(obj, _CACHED):
        return make_cached, (obj.__wrapped__, obj.cache_parameters()), dict(vars(obj))
    if isinstance(obj, typing.NewType):
        return typing.NewType, (obj.__name__, obj.__supertype__), dict(vars(obj))
    options = {name: getattr(obj, f"__{name}__", None) for name in ("bound", "covariant", "contravariant")}
    given = {name: value for name, value in options.items() if value}
    return make_type_variable, (type(obj), obj.__name__, given)


def _is_found_by_name(obj: Any) -> bool:
    module = sys.modules.get(obj.__module__) if obj.__module__ != "__main__" else None
    try:
        return operator.attrgetter(getattr(obj, "__qualname__", obj.__name__))(module) is obj
    except AttributeError:
        return False


def make_cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def make_type_variable(kind: Any, name: str, options: dict[str, Any]) -> Any:
    return kind(name, **options)


def make_cached_property(kind: Any) -> Any:
    """Make an empty cached_property. Before Python 3.12 it has a lock, which is not sent."""
    made = kind.__new__(kind)
    vars(made).update(vars(functools.cached_property(len)))
    return made


def _reduce_dispatch(obj: Any) -> Reduced:
    own = vars(functools.singledispatch(len))
    more = {name: value for name, value in vars(obj).items() if name not in own}
    named = {name: getattr(obj, name) for name in ("__name__", "__qualname__", "__module__", "__doc__")}
    state = dict(obj.registry), {**more, **named}
    return make_dispatch, (obj.registry[object],), state, None, None, fill_dispatch


def make_dispatch(function: Callable[..., Any]) -> Any:
    return functools.singledispatch(function)


def fill_dispatch(dispatch: Any, state: tuple[dict[type, Any], dict[str, Any]]) -> None:
    registry, attributes = state
    for kind, function in registry.items():
        dispatch.register(kind, function)
    for name, value in attributes.items():
        setattr(dispatch, name, value)
