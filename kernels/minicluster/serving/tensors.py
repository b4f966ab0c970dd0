"""The values that a model takes and returns: as its code has them, as arrays with names, as plain JSON.

Both ends use this module: the notebook describes an example with it, and the replica reads requests and
writes answers. minicluster.serving.protocol has the other way to ask.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minicluster.errors import MiniclusterError
from minicluster.wire.serving.replicas import ANY, ONE, Signature, TensorSpec, TensorType, ValueKind

Array = np.ndarray[Any, Any]

INPUT, OUTPUT = "input", "output"
"""The names of a tensor that has none of its own."""
DTYPES: dict[TensorType, np.dtype[Any]] = {
    TensorType.BOOL: np.dtype(np.bool_),
    TensorType.UINT8: np.dtype(np.uint8),
    TensorType.UINT16: np.dtype(np.uint16),
    TensorType.UINT32: np.dtype(np.uint32),
    TensorType.UINT64: np.dtype(np.uint64),
    TensorType.INT8: np.dtype(np.int8),
    TensorType.INT16: np.dtype(np.int16),
    TensorType.INT32: np.dtype(np.int32),
    TensorType.INT64: np.dtype(np.int64),
    TensorType.FP16: np.dtype(np.float16),
    TensorType.FP32: np.dtype(np.float32),
    TensorType.FP64: np.dtype(np.float64),
    TensorType.BYTES: np.dtype(object),
}
_TYPES = {dtype: name for name, dtype in DTYPES.items()}
_WHOLE = "biu"
"""The kinds of dtypes whose numbers are exact."""


class ValueRefused(MiniclusterError):
    """A value that does not fit to the model; the message is for whoever sent it."""


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch or an array of numpy. torch is not imported for the question."""
    return isinstance(value, np.ndarray) or is_torch(value)


def is_torch(value: Any) -> bool:
    return any(
        kind.__module__.partition(".")[0] == "torch" and kind.__name__ == "Tensor"
        for kind in type(value).__mro__
    )


def kind_of(value: Any) -> ValueKind:
    if is_tensor(value):
        return ValueKind.TENSOR
    if isinstance(value, Mapping) and value and all(map(is_tensor, value.values())):
        return ValueKind.NAMED
    if isinstance(value, str) or (
        isinstance(value, list) and value and all(isinstance(one, str) for one in value)
    ):
        return ValueKind.TEXT
    return ValueKind.JSON


def array_of(value: Any) -> Array:
    """Return a tensor as an array; bfloat16, which numpy lacks, as float32. Raises ValueRefused."""
    if is_torch(value):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = np.asarray(value)
    if array.dtype == object or array.dtype not in _TYPES:
        known = ", ".join(str(dtype) for dtype in _TYPES if dtype.kind != "O")
        raise ValueRefused(f"a tensor of {array.dtype} has no type in the protocol; it has: {known}")
    return array


def arrays_of(value: Any, kind: ValueKind, name: str) -> dict[str, Array]:
    """Return a value's tensors by their names; texts are bytes. Raises ValueRefused.

    name: of the tensor, if the value has no names.
    """
    if kind is ValueKind.TENSOR:
        return {name: array_of(value)}
    if kind is ValueKind.NAMED:
        return {str(key): array_of(one) for key, one in value.items()}
    texts = [value] if isinstance(value, str) else value
    if kind is ValueKind.JSON:
        texts = [as_json(value).decode()]
    return {name: np.array([text.encode() for text in texts], dtype=object)}


def type_of(array: Array) -> TensorType:
    return _TYPES[array.dtype]


def specs_of(value: Any, kind: ValueKind, name: str, *, batched: bool) -> tuple[TensorSpec, ...]:
    """Describe a value's tensors. batched: their first dimension may have any size. Raises ValueRefused."""
    # A list of texts may have any length; one text stays one.
    any_length = batched or (kind is ValueKind.TEXT and not isinstance(value, str))
    return tuple(
        TensorSpec(
            name=key,
            datatype=type_of(array),
            shape=(ANY, *array.shape[1:]) if any_length and array.ndim else array.shape,
        )
        for key, array in arrays_of(value, kind, name).items()
    )


# JSON.


def as_json(value: Any) -> bytes:
    """Write a value as JSON: numbers of numpy as numbers, tensors as lists. Raises ValueRefused.

    JSON has neither NaN nor infinity.
    """
    try:
        return json.dumps(value, default=_plain, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueRefused(f"a {type(value).__name__} cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    if is_tensor(value):
        return array_of(value).tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"it contains a {type(value).__name__}")


def from_json(data: bytes) -> Any:
    """Return the value of a request's JSON. Raises ValueRefused."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueRefused(f"the request is no JSON: {error}") from None


# From a request to what the model takes.


def read_plain(value: Any, signature: Signature) -> Any:
    """Return the model's input for the JSON of POST predict. Raises ValueRefused.

    One tensor: nested lists. Several: an object of nested lists. Text: a string, or a list of strings.
    """
    kind, first = signature.input_kind, signature.inputs[0]
    if kind is ValueKind.JSON:
        return value
    if kind is ValueKind.TEXT:
        return _texts(value, first)
    if kind is ValueKind.TENSOR:
        return fitting(array_from(value, first), first)
    if not isinstance(value, dict):
        names = ", ".join(spec.name for spec in signature.inputs)
        raise ValueRefused(f"the model takes an object with {names}, not a {_json_name(value)}")
    check_names(value, signature)
    arrays = {spec.name: fitting(array_from(value[spec.name], spec), spec) for spec in signature.inputs}
    return alike(arrays, signature)


def _texts(value: Any, spec: TensorSpec) -> str | list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise ValueRefused(f"the model takes a string or a list of strings, not a {_json_name(value)}")
    if spec.shape != ONE:
        return texts
    if len(texts) != 1:
        raise ValueRefused(f"the model takes one string, not {len(texts)}")
    return texts[0]


def array_from(data: Any, spec: TensorSpec) -> Array:
    """Return the numbers of nested lists as an array.

    Raises ValueRefused, also where a number would become another one: 1.5 or 300 as UINT8.
    """
    if not isinstance(data, list | int | float):
        raise ValueRefused(f"{spec.name} wants numbers in lists, not a {_json_name(data)}")
    try:
        found = np.asarray(data)
        if found.dtype.kind not in "biuf":
            raise ValueError("it is no table of numbers")
        with np.errstate(all="ignore"):
            made = found.astype(DTYPES[spec.datatype])
        if made.dtype.kind in _WHOLE and not np.array_equal(made, found):
            raise ValueError("not all of its numbers are of this type")
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueRefused(f"{spec.name} cannot be read as {spec.datatype.value}: {error}") from None
    return made


def fitting(array: Array, spec: TensorSpec) -> Array:
    """Return the array. Raises ValueRefused if its shape is not the model's."""
    fits = len(array.shape) == len(spec.shape) and all(
        wanted in (ANY, found) for wanted, found in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        wanted = "[" + ", ".join("any" if one == ANY else str(one) for one in spec.shape) + "]"
        raise ValueRefused(f"{spec.name} has the shape {list(array.shape)}; the model takes {wanted}")
    return array


def alike(arrays: dict[str, Array], signature: Signature) -> dict[str, Array]:
    """Return the inputs. Raises ValueRefused if they count different numbers of samples.

    In a batch, each sample would get those of another request.
    """
    if signature.batched and len({len(one) for one in arrays.values()}) > 1:
        counts = ", ".join(f"{name} has {len(one)}" for name, one in arrays.items())
        raise ValueRefused(f"the inputs have different numbers of samples: {counts}")
    return arrays


def check_names(given: Mapping[str, Any], signature: Signature) -> None:
    """Raise ValueRefused unless these are the model's inputs."""
    wanted = [spec.name for spec in signature.inputs]
    if missing := [name for name in wanted if name not in given]:
        raise ValueRefused(f"the request lacks {', '.join(missing)}; the model takes {', '.join(wanted)}")
    if unknown := [name for name in given if name not in wanted]:
        raise ValueRefused(f"the model has no input {str(unknown[0])[:80]!r}; it takes {', '.join(wanted)}")


def _json_name(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


# Several requests at once.


def samples(value: Any) -> int:
    """Return how many samples an input or an output has."""
    return len(next(iter(value.values())) if isinstance(value, Mapping) else value)


def together(values: Sequence[Any]) -> Any:
    """Return the inputs of several requests as one: their tensors behind one another."""
    if isinstance(values[0], Mapping):
        return {name: np.concatenate([one[name] for one in values]) for name in values[0]}
    if isinstance(values[0], list):
        return [text for texts in values for text in texts]
    return np.concatenate(values)


def apart(value: Any, counts: Sequence[int]) -> list[Any]:
    """Return one output as those of several requests. counts: samples of each. Raises ValueRefused."""
    parts = list(value.values()) if isinstance(value, Mapping) else [value]
    for part in parts:
        if len(part) != sum(counts):
            raise ValueRefused(f"the model returned {len(part)} answers to {sum(counts)} samples")
    found: list[Any] = []
    start = 0
    for count in counts:
        end = start + count
        if isinstance(value, Mapping):
            found.append({name: one[start:end] for name, one in value.items()})
        else:
            found.append(value[start:end])
        start = end
    return found
