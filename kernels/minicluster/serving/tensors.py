"""The values that a model takes and returns: as its code has them, as tensors of the protocol, as JSON.

The open inference protocol (V2): https://github.com/kserve/open-inference-protocol. Both ends use this
module: the notebook describes an example with it, and the replica reads requests and writes answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minicluster.errors import MiniclusterError
from minicluster.wire.serving.replicas import ANY, Signature, TensorSpec, TensorType, ValueKind

INPUT, OUTPUT = "input", "output"
"""The names of a tensor that has none of its own."""
_DTYPES: dict[TensorType, Any] = {
    TensorType.BOOL: np.bool_,
    TensorType.UINT8: np.uint8,
    TensorType.UINT16: np.uint16,
    TensorType.UINT32: np.uint32,
    TensorType.UINT64: np.uint64,
    TensorType.INT8: np.int8,
    TensorType.INT16: np.int16,
    TensorType.INT32: np.int32,
    TensorType.INT64: np.int64,
    TensorType.FP16: np.float16,
    TensorType.FP32: np.float32,
    TensorType.FP64: np.float64,
}
_TYPES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
_LENGTH_BYTES = 4


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


def array_of(value: Any) -> np.ndarray[Any, Any]:
    """Return a tensor as an array; bfloat16, which numpy lacks, as float32. Raises ValueRefused."""
    if is_torch(value):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    array = np.asarray(value)
    if array.dtype not in _TYPES:
        known = ", ".join(str(dtype) for dtype in _TYPES)
        raise ValueRefused(f"a tensor of {array.dtype} has no type in the protocol; it has: {known}")
    return array


def arrays_of(value: Any, kind: ValueKind, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return a value's tensors by their names. Raises ValueRefused."""
    if kind is ValueKind.TENSOR:
        return {name: array_of(value)}
    if kind is ValueKind.NAMED:
        return {str(key): array_of(one) for key, one in value.items()}
    texts = [value] if isinstance(value, str) else value
    if kind is ValueKind.JSON:
        texts = [as_json(value).decode()]
    return {name: np.array([text.encode() for text in texts], dtype=object)}


def specs_of(value: Any, kind: ValueKind, name: str, *, batched: bool) -> tuple[TensorSpec, ...]:
    """Describe a value's tensors. batched: their first dimension may have any size. Raises ValueRefused."""
    found: list[TensorSpec] = []
    for key, array in arrays_of(value, kind, name).items():
        is_text = array.dtype == object
        shape = (ANY,) if is_text else tuple(array.shape)
        shape = (ANY, *shape[1:]) if batched and shape else shape
        datatype = TensorType.BYTES if is_text else _TYPES[array.dtype]
        found.append(TensorSpec(name=key, datatype=datatype, shape=shape))
    return tuple(found)


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


# From a request to what the model takes.


def read_plain(value: Any, signature: Signature) -> Any:
    """Return the model's input for the JSON of POST predict. Raises ValueRefused.

    One tensor: nested lists. Several: an object of nested lists. Text: a string, or a list of strings.
    """
    kind = signature.input_kind
    if kind is ValueKind.JSON:
        return value
    if kind is ValueKind.TEXT:
        return _text(value)
    if kind is ValueKind.TENSOR:
        spec = signature.inputs[0]
        return _whole(_from_list(value, spec), spec)
    if not isinstance(value, dict):
        names = ", ".join(spec.name for spec in signature.inputs)
        raise ValueRefused(f"the model takes an object with {names}, not a {_json_name(value)}")
    _check_names(value, signature)
    return {spec.name: _whole(_from_list(value[spec.name], spec), spec) for spec in signature.inputs}


def read_v2(request: Any, binary: bytes, signature: Signature) -> Any:
    """Return the model's input for the JSON of an inference request. Raises ValueRefused.

    binary: what followed it (the binary extension); the tensors are in it in their order.
    """
    inputs = request.get("inputs") if isinstance(request, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(one, dict) and "name" in one for one in inputs):
        raise ValueRefused('an inference request has "inputs", a list of tensors with their names')
    arrays, rest = {}, memoryview(binary)
    for tensor in inputs:
        spec = next((one for one in signature.inputs if one.name == tensor["name"]), None)
        if spec is None:
            raise _unknown_name(str(tensor["name"]), signature)
        data, rest = _of_v2(tensor, spec, rest)
        arrays[spec.name] = _whole(data, spec)
    _check_names(arrays, signature)
    return _value_of(arrays, signature)


def _value_of(arrays: Mapping[str, np.ndarray[Any, Any]], signature: Signature) -> Any:
    kind = signature.input_kind
    if kind is ValueKind.NAMED:
        return dict(arrays)
    only = next(iter(arrays.values()))
    if kind is ValueKind.TENSOR:
        return only
    texts = [_decoded(one) for one in only.reshape(-1)]
    if kind is ValueKind.TEXT:
        return texts
    try:
        return json.loads(texts[0]) if texts else None
    except ValueError as error:
        raise ValueRefused(f"the model takes a JSON value, which {INPUT} does not hold: {error}") from error


def _of_v2(
    tensor: Mapping[str, Any], spec: TensorSpec, rest: memoryview
) -> tuple[np.ndarray[Any, Any], memoryview]:
    """Return a tensor of a request, and what is left of the binary data."""
    if tensor.get("datatype", spec.datatype) != spec.datatype:
        raise ValueRefused(f"{spec.name} is {spec.datatype.value}, not {str(tensor['datatype'])[:40]}")
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(one) is int and 0 <= one <= 1 << 40 for one in shape):
        raise ValueRefused(f"{spec.name} has no shape: a list of whole numbers")
    parameters = tensor.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        array = _from_list(tensor.get("data"), spec)
    else:
        if type(size) is not int or not 0 <= size <= len(rest):
            raise ValueRefused(f"{spec.name}: binary_data_size is {size}, and {len(rest)} bytes are left")
        array, rest = _from_bytes(rest[:size], spec), rest[size:]
    try:
        return array.reshape(shape), rest
    except ValueError:
        raise ValueRefused(
            f"{spec.name} has {array.size} values, which are not of the shape {shape}"
        ) from None


def _from_list(data: Any, spec: TensorSpec) -> np.ndarray[Any, Any]:
    if spec.datatype is TensorType.BYTES:
        texts = _text(data)
        return np.array([text.encode() for text in texts], dtype=object)
    if not isinstance(data, list | int | float):
        raise ValueRefused(f"{spec.name} wants numbers in lists, not a {_json_name(data)}")
    try:
        array = np.asarray(data)
        if array.dtype == object or array.dtype.kind not in "biuf":
            raise ValueError("it is no table of numbers")
        made = array.astype(_DTYPES[spec.datatype])
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueRefused(f"{spec.name} cannot be read as {spec.datatype.value}: {error}") from None
    return made


def _from_bytes(data: memoryview, spec: TensorSpec) -> np.ndarray[Any, Any]:
    if spec.datatype is not TensorType.BYTES:
        dtype = np.dtype(_DTYPES[spec.datatype]).newbyteorder("<")
        if len(data) % dtype.itemsize:
            raise ValueRefused(f"{spec.name}: {len(data)} bytes are no whole number of {spec.datatype.value}")
        return np.frombuffer(data, dtype).copy()
    found: list[bytes] = []
    while data:
        size = int.from_bytes(data[:_LENGTH_BYTES], "little")
        if len(data) < _LENGTH_BYTES + size:
            raise ValueRefused(f"{spec.name}: a text of {size} bytes is cut")
        found.append(bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + size]))
        data = data[_LENGTH_BYTES + size :]
    return np.array(found, dtype=object)


def _whole(array: np.ndarray[Any, Any], spec: TensorSpec) -> np.ndarray[Any, Any]:
    """Return the array. Raises ValueRefused if its shape is not the model's."""
    fits = len(array.shape) == len(spec.shape) and all(
        wanted in (ANY, found) for wanted, found in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        wanted = "[" + ", ".join("any" if one == ANY else str(one) for one in spec.shape) + "]"
        raise ValueRefused(f"{spec.name} has the shape {list(array.shape)}; the model takes {wanted}")
    return array


def _check_names(given: Mapping[str, Any], signature: Signature) -> None:
    wanted = [spec.name for spec in signature.inputs]
    if missing := [name for name in wanted if name not in given]:
        raise ValueRefused(f"the request lacks {', '.join(missing)}; the model takes {', '.join(wanted)}")
    if unknown := [name for name in given if name not in wanted]:
        raise _unknown_name(str(unknown[0]), signature)


def _unknown_name(name: str, signature: Signature) -> ValueRefused:
    wanted = ", ".join(spec.name for spec in signature.inputs)
    return ValueRefused(f"the model has no input {name[:80]!r}; it takes {wanted}")


def _text(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise ValueRefused(f"the model takes a string or a list of strings, not a {_json_name(value)}")
    return texts


def _decoded(data: Any) -> str:
    try:
        return data.decode() if isinstance(data, bytes) else str(data)
    except UnicodeDecodeError as error:
        raise ValueRefused(f"a text is not UTF-8: {error}") from None


def _json_name(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


# From what the model returns to an answer.


def write_plain(value: Any, signature: Signature) -> bytes:
    """Return the JSON of an answer to POST predict. Raises ValueRefused."""
    return as_json(value)


def write_v2(
    value: Any, signature: Signature, head: Mapping[str, Any], *, binary: bool = False
) -> tuple[bytes, int | None]:
    """Return an inference answer, and with `binary` how many bytes of it are JSON. Raises ValueRefused.

    head: what it has beside its outputs.
    """
    outputs: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, array in arrays_of(value, signature.output_kind, OUTPUT).items():
        is_text = array.dtype == object
        datatype = TensorType.BYTES if is_text else _TYPES[array.dtype]
        output: dict[str, Any] = {"name": name, "datatype": datatype.value, "shape": list(array.shape)}
        if binary:
            data = _to_bytes(array)
            tail.append(data)
            output["parameters"] = {"binary_data_size": len(data)}
        else:
            flat = array.reshape(-1)
            output["data"] = [one.decode() for one in flat] if is_text else flat.tolist()
        outputs.append(output)
    text = as_json({**head, "outputs": outputs})
    return b"".join([text, *tail]), len(text) if binary else None


def _to_bytes(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype != object:
        return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return b"".join(len(one).to_bytes(_LENGTH_BYTES, "little") + one for one in array.reshape(-1))


# Several requests at once.


def samples(value: Any) -> int:
    """Return how many samples an input or an output has."""
    array = next(iter(value.values())) if isinstance(value, Mapping) else value
    return len(array)


def together(values: Sequence[Any]) -> Any:
    """Return the inputs of several requests as one: their tensors behind one another."""
    if isinstance(values[0], Mapping):
        return {name: np.concatenate([one[name] for one in values]) for name in values[0]}
    if isinstance(values[0], list):
        return [text for texts in values for text in texts]
    return np.concatenate(values)


def apart(value: Any, counts: Sequence[int]) -> list[Any]:
    """Return one output as those of several requests, with so many samples each. Raises ValueRefused."""
    if samples(value) != sum(counts):
        raise ValueRefused(f"the model returned {samples(value)} answers to {sum(counts)} samples")
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
