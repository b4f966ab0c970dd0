"""Calls a model with the values of a request: in the notebook for its example, in the replica for each
request.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from minicluster.errors import MiniclusterError
from minicluster.wire.serving.replicas import Signature, ValueKind


class NotServable(MiniclusterError):
    """An object that answers nothing."""


def is_module(model: Any) -> bool:
    """Whether it is a module of torch, which is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def caller(model: Any, signature: Signature, device: str) -> Callable[[Any], Any]:
    """Return a function from an input to an output. A module of torch is in eval mode, on the device.

    Raises NotServable.
    """
    if not callable(model):
        raise NotServable(
            f"A {type(model).__name__} cannot be called.", "Serve a module of torch, or a function."
        )
    if not signature.torch:
        return _plain_caller(model, signature)
    import torch

    place = "cpu"
    if isinstance(model, torch.nn.Module):
        model, place = model.to(device).eval(), device

    def given(value: Any) -> Any:
        if signature.input_kind is ValueKind.TENSOR:
            return torch.from_numpy(value).to(place)
        if signature.input_kind is ValueKind.NAMED:
            return {name: torch.from_numpy(one).to(place) for name, one in value.items()}
        return value

    def call(value: Any) -> Any:
        with torch.inference_mode():
            return _called(model, signature, given(value))

    return call


def _plain_caller(model: Any, signature: Signature) -> Callable[[Any], Any]:
    torch = sys.modules.get("torch")

    def call(value: Any) -> Any:
        with torch.inference_mode() if torch is not None else nullcontext():
            return _called(model, signature, value)

    return call


def _called(model: Any, signature: Signature, value: Any) -> Any:
    return model(**value) if signature.input_kind is ValueKind.NAMED else model(value)
