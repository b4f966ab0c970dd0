"""Runs a model on an example, before anything is sent: what goes in and comes out becomes its description."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from pydantic import ValidationError

from minicluster.errors import MiniclusterError
from minicluster.serving import tensors
from minicluster.serving.calling import caller, is_module
from minicluster.wire.serving.replicas import Signature, TensorSpec, TensorType, ValueKind

_LATER = (TensorSpec(name=tensors.OUTPUT, datatype=TensorType.BYTES, shape=()),)


class ExampleFailed(MiniclusterError):
    """The model does not take its example."""


def signature_of(model: Any, example: Any) -> Signature:
    """Run the model on the example; return what it takes and returns. Raises ExampleFailed, NotServable."""
    kind = tensors.kind_of(example)
    uses_torch = is_module(model) or any(map(tensors.is_torch, _parts(example)))
    try:
        value = _as_sent(example, kind)
        specs = tensors.specs_of(example, kind, tensors.INPUT, batched=False)
        asked = Signature(
            input_kind=kind, output_kind=ValueKind.JSON, inputs=specs, outputs=_LATER, torch=uses_torch
        )
    except ValidationError as error:
        raise ExampleFailed(
            f"The example cannot be described: {error.errors()[0]['msg']}",
            "A dict of tensors has names like those of Python's variables.",
        ) from None
    except tensors.ValueRefused as refused:
        raise ExampleFailed(
            f"The example cannot come in a request: {refused.message}",
            "It may be a tensor, a dict of tensors, strings, or what JSON can write.",
        ) from None
    with _undisturbed(model):
        call = caller(model, asked, _device_of(model))
        output = _called(call, value)
        return _described(example, output, asked, call, value)


def _described(
    example: Any, output: Any, asked: Signature, call: Callable[[Any], Any], value: Any
) -> Signature:
    kind = tensors.kind_of(output)
    batched = asked.input_kind is not ValueKind.JSON and _takes_two(call, value, output)
    try:
        if kind is ValueKind.JSON:
            tensors.as_json(output)
        outputs = tensors.specs_of(output, kind, tensors.OUTPUT, batched=batched)
        inputs = tensors.specs_of(example, asked.input_kind, tensors.INPUT, batched=batched)
        changed = {"output_kind": kind, "inputs": inputs, "outputs": outputs, "batched": batched}
        return asked.model_copy(update=changed)
    except (tensors.ValueRefused, ValidationError) as error:
        why = error.message if isinstance(error, tensors.ValueRefused) else error.errors()[0]["msg"]
        raise ExampleFailed(
            f"What the model returns cannot be an answer: {why}",
            "It may return a tensor, a dict of tensors, strings, or what JSON can write.",
        ) from None


def _called(call: Callable[[Any], Any], value: Any) -> Any:
    try:
        return call(value)
    except Exception as error:
        raise ExampleFailed(
            f"The model fails on its example: {type(error).__name__}: {error}",
            "Nothing was sent. --example takes what the model takes: a tensor with its batch dimension, say.",
        ) from error


def _takes_two(call: Callable[[Any], Any], value: Any, output: Any) -> bool:
    """Whether two examples behind one another give two answers behind one another: it can be batched."""
    if not _has_samples(value) or not _has_samples(output):
        return False
    try:
        twice = call(tensors.together([value, value]))
        return (
            tensors.kind_of(twice) is tensors.kind_of(output)
            and _sizes(twice) == [2 * size for size in _sizes(output)]
            and _rest(twice) == _rest(output)
        )
    except Exception:
        # Whatever it does with two: requests are then computed one by one.
        return False


def _has_samples(value: Any) -> bool:
    """Whether all parts of a value have the same number of samples, and at least one."""
    sizes = _sizes(value)
    return len(set(sizes)) == 1 and sizes[0] > 0


def _sizes(value: Any) -> list[int]:
    """Return the first dimension of each tensor, or the length of a list; -1 for what has neither."""
    if isinstance(value, list):
        return [len(value)]
    return [len(one) if one.ndim else -1 for one in _parts(value)]


def _rest(value: Any) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors, but for their first dimensions."""
    return [tuple(one.shape[1:]) for one in _parts(value)]


def _parts(value: Any) -> list[Any]:
    """Return the tensors of a value."""
    values = list(value.values()) if isinstance(value, Mapping) else [value]
    return [one for one in values if tensors.is_tensor(one)]


def _as_sent(example: Any, kind: ValueKind) -> Any:
    """Return the example as it is after it came through a request. Raises ValueRefused."""
    if kind is ValueKind.TENSOR:
        return tensors.array_of(example)
    if kind is ValueKind.NAMED:
        return {name: tensors.array_of(one) for name, one in example.items()}
    return tensors.from_json(tensors.as_json(example))


def _device_of(model: Any) -> str:
    first = next(iter(model.parameters()), None) if is_module(model) else None
    return "cpu" if first is None else str(first.device)


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """Compute no gradients, and leave a module in the mode that it had."""
    modes = [(one, one.training) for one in model.modules()] if is_module(model) else []
    torch = sys.modules.get("torch")
    try:
        # Not inference_mode: a tensor that a module keeps of that could never be trained with.
        with nullcontext() if torch is None else torch.no_grad():
            yield
    finally:
        for one, mode in modes:
            one.training = mode
