"""Calls a model with the values of a request: in the notebook for its example, in the replica for each
request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

from minicluster.errors import MiniclusterError
from minicluster.wire.serving.replicas import Signature, ValueKind

if TYPE_CHECKING:
    import torch


class NotServable(MiniclusterError):
    """Something that cannot answer requests; the message says why."""


def is_module(model: Any) -> TypeGuard[torch.nn.Module]:
    """Whether it is a module of torch, which is not imported for the question."""
    imported = sys.modules.get("torch")
    return imported is not None and isinstance(model, imported.nn.Module)


def caller(model: Any, signature: Signature, place: str) -> Callable[[Any], Any]:
    """Return a function from an input to an output. A module of torch is set to eval mode.

    place: the device of the module, to which its inputs go. Raises NotServable.
    """
    if not callable(model):
        raise NotServable(
            f"A {type(model).__name__} cannot be called.", "Serve a module of torch, or a function."
        )
    if is_module(model):
        model.eval()
    else:
        place = "cpu"
    as_given = _to_torch(signature.input_kind, place) if signature.torch else _as_it_is

    def call(value: Any) -> Any:
        given = as_given(value)
        return model(**given) if signature.input_kind is ValueKind.NAMED else model(given)

    return call


def _as_it_is(value: Any) -> Any:
    return value


def _to_torch(kind: ValueKind, place: str) -> Callable[[Any], Any]:
    """Return what makes tensors of the arrays of an input."""
    import torch

    if kind is ValueKind.TENSOR:
        return lambda array: torch.from_numpy(array).to(place)
    if kind is ValueKind.NAMED:
        return lambda arrays: {name: torch.from_numpy(one).to(place) for name, one in arrays.items()}
    return _as_it_is
