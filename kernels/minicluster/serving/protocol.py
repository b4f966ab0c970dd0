"""The open inference protocol (V2) with its binary extension: requests as inputs, outputs as answers.

https://github.com/kserve/open-inference-protocol; the extension is described by Triton's
docs/protocol/extension_binary_data.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minicluster.serving.tensors import (
    DTYPES,
    OUTPUT,
    Array,
    ValueRefused,
    alike,
    array_from,
    arrays_of,
    as_json,
    check_names,
    fitting,
    from_json,
    type_of,
)
from minicluster.wire.serving.replicas import ONE, Signature, TensorSpec, TensorType, ValueKind

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The header with the number of bytes of the body that are JSON; the tensors' bytes follow them."""
BINARY_EXTENSION = "binary_tensor_data"
_LENGTH_BYTES = 4
_NO_INPUTS = 'an inference request is an object with "inputs", a list of tensors with their names'
_MOST_SIZE = 1 << 40
_MOST_DIGITS = 16


@dataclass(frozen=True)
class Wanted:
    """What a request asked of its answer.

    id: to be repeated. outputs: which ones, and whether as binary data; none: all of them. binary: whether
    those that are not named are.
    """

    id: str | None = None
    outputs: Mapping[str, bool] = field(default_factory=dict[str, bool])
    binary: bool = False


def read_request(body: bytes, json_bytes: str, signature: Signature) -> tuple[Any, Wanted]:
    """Return the model's input of an inference request, and what it asked. Raises ValueRefused.

    json_bytes: the header HEADER_LENGTH; "": all of the body is JSON.
    """
    end = len(body)
    if json_bytes:
        end = int(json_bytes) if json_bytes.isdecimal() and len(json_bytes) < _MOST_DIGITS else -1
    if not 0 <= end <= len(body):
        raise ValueRefused(f"the header {HEADER_LENGTH} is {json_bytes[:20]!r}, of {len(body)} bytes")
    request = from_json(body[:end])
    if not isinstance(request, dict):
        raise ValueRefused(_NO_INPUTS)
    arrays = _inputs(request.get("inputs"), memoryview(body)[end:], signature)
    wanted = _wanted(request, [spec.name for spec in signature.outputs])
    return _input_of(arrays, signature), wanted


def _inputs(tensors: Any, binary: memoryview, signature: Signature) -> dict[str, Array]:
    """Return the arrays of a request. binary: in the order of the tensors that it belongs to."""
    if not isinstance(tensors, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in tensors
    ):
        raise ValueRefused(_NO_INPUTS)
    check_names({tensor["name"]: tensor for tensor in tensors}, signature)
    specs = {spec.name: spec for spec in signature.inputs}
    arrays: dict[str, Array] = {}
    for tensor in tensors:
        spec = specs[tensor["name"]]
        array, binary = _array(tensor, spec, binary)
        arrays[spec.name] = fitting(array, spec)
    if binary:
        raise ValueRefused(f"{len(binary)} bytes follow the last tensor of the request")
    return arrays


def _array(tensor: Mapping[str, Any], spec: TensorSpec, binary: memoryview) -> tuple[Array, memoryview]:
    """Return a tensor of a request, and what is left of the binary data."""
    if tensor.get("datatype", spec.datatype) != spec.datatype:
        raise ValueRefused(f"{spec.name} is {spec.datatype.value}, not {str(tensor['datatype'])[:40]}")
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(one) is int and 0 <= one <= _MOST_SIZE for one in shape):
        raise ValueRefused(f"{spec.name} has no shape: a list of whole numbers")
    size = _parameter(tensor, "binary_data_size")
    if size is None:
        array = _from_lists(tensor.get("data"), spec)
    elif type(size) is int and 0 <= size <= len(binary):
        array, binary = _from_bytes(binary[:size], spec), binary[size:]
    else:
        raise ValueRefused(f"{spec.name}: binary_data_size is {size!r:.40}; {len(binary)} bytes are left")
    try:
        return array.reshape(shape), binary
    except ValueError:
        raise ValueRefused(
            f"{spec.name} has {array.size} values, which are not of the shape {shape}"
        ) from None


def _parameter(of: Mapping[str, Any], name: str) -> Any:
    parameters = of.get("parameters")
    return parameters.get(name) if isinstance(parameters, dict) else None


def _from_lists(data: Any, spec: TensorSpec) -> Array:
    """Return the values of lists, which are nested or flat."""
    if spec.datatype is not TensorType.BYTES:
        return array_from(data, spec)
    texts = list(_flat(data))
    if not isinstance(data, list) or not all(isinstance(one, str) for one in texts):
        raise ValueRefused(f"{spec.name} wants strings in lists")
    return np.array([text.encode() for text in texts], dtype=object)


def _flat(data: Any) -> Iterator[Any]:
    if isinstance(data, list):
        for one in data:
            yield from _flat(one)
    else:
        yield data


def _from_bytes(data: memoryview, spec: TensorSpec) -> Array:
    if spec.datatype is TensorType.BYTES:
        return np.array(list(_elements(data, spec)), dtype=object)
    dtype = DTYPES[spec.datatype].newbyteorder("<")
    if len(data) % dtype.itemsize:
        raise ValueRefused(f"{spec.name}: {len(data)} bytes are no whole number of {spec.datatype.value}")
    if not data:
        return np.empty(0, dtype)
    if spec.datatype is TensorType.BOOL:
        return np.frombuffer(data, np.uint8) != 0
    return np.frombuffer(data, dtype).astype(DTYPES[spec.datatype])


def _elements(data: memoryview, spec: TensorSpec) -> Iterator[bytes]:
    """Yield the elements of BYTES, each of which comes after its length."""
    while data:
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        if len(data) < max(end, _LENGTH_BYTES):
            raise ValueRefused(f"{spec.name}: its last element is cut")
        yield bytes(data[_LENGTH_BYTES:end])
        data = data[end:]


def _input_of(arrays: dict[str, Array], signature: Signature) -> Any:
    if signature.input_kind is ValueKind.NAMED:
        return alike(arrays, signature)
    (spec,) = signature.inputs
    only = arrays[spec.name]
    if signature.input_kind is ValueKind.TENSOR:
        return only
    if signature.input_kind is ValueKind.JSON:
        return from_json(only[0])
    try:
        texts = [one.decode() for one in only]
    except UnicodeDecodeError as error:
        raise ValueRefused(f"{spec.name} has a text that is not UTF-8: {error}") from None
    return texts[0] if spec.shape == ONE else texts


def _wanted(request: Mapping[str, Any], names: list[str]) -> Wanted:
    binary = bool(_parameter(request, "binary_data_output"))
    outputs: dict[str, bool] = {}
    asked = request.get("outputs") or []
    for one in asked if isinstance(asked, list) else [asked]:
        name = one.get("name") if isinstance(one, dict) else None
        if name not in names:
            raise ValueRefused(f"the model has no output {str(name)[:80]!r}; it returns {', '.join(names)}")
        own = _parameter(one, "binary_data")
        outputs[name] = binary if own is None else bool(own)
    given = request.get("id")
    return Wanted(given if isinstance(given, str) else None, outputs, binary)


def write_answer(
    value: Any, signature: Signature, about: Mapping[str, str], wanted: Wanted
) -> tuple[bytes, int | None]:
    """Return an answer's body, and how many bytes of it are JSON; None: all are. Raises ValueRefused.

    about: the model's name and version.
    """
    arrays = arrays_of(value, signature.output_kind, OUTPUT)
    outputs: list[dict[str, Any]] = []
    binary: list[bytes] = []
    for name, is_binary in (wanted.outputs or dict.fromkeys(arrays, wanted.binary)).items():
        if name not in arrays:
            raise ValueRefused(f"this time the model returned no {name}")
        array = arrays[name]
        output: dict[str, Any] = {
            "name": name,
            "datatype": type_of(array).value,
            "shape": list(array.shape),
        }
        if is_binary:
            binary.append(_to_bytes(array))
            output["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            output["data"] = _to_list(array)
        outputs.append(output)
    own_id = {} if wanted.id is None else {"id": wanted.id}
    text = as_json({**about, **own_id, "outputs": outputs})
    return b"".join([text, *binary]), len(text) if binary else None


def _to_list(array: Array) -> list[Any]:
    flat = array.reshape(-1)
    return [one.decode() for one in flat] if array.dtype == object else flat.tolist()


def _to_bytes(array: Array) -> bytes:
    if array.dtype == object:
        return b"".join(len(one).to_bytes(_LENGTH_BYTES, "little") + one for one in array.reshape(-1))
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
