"""The open inference protocol (V2) and its binary extension."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from minicluster.serving import protocol
from minicluster.serving.example import signature_of
from minicluster.serving.protocol import Wanted
from minicluster.serving.tensors import ValueRefused
from minicluster.wire.serving.replicas import Signature

ABOUT = {"model_name": "pair", "model_version": "2"}


def pair(left, right):
    return {"total": left + right, "product": left * right}


PAIR = signature_of(pair, {"left": np.ones(2), "right": np.ones(2)})
TABLE = signature_of(lambda x: x, np.ones((1, 4), np.float32))


def read(request: Any, signature: Signature = TABLE, binary: bytes = b"") -> tuple[Any, Wanted]:
    """Read a request; what follows the JSON is told by the header."""
    text = json.dumps(request).encode()
    return protocol.read_request(text + binary, str(len(text)) if binary else "", signature)


def tensor(name: str = "input", **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4], **more}


def in_binary(name: str, data: bytes, **more: Any) -> dict[str, Any]:
    made = tensor(name, parameters={"binary_data_size": len(data)}, **more)
    del made["data"]
    return made


def answer(value: Any, wanted: Wanted, signature: Signature = PAIR) -> tuple[dict[str, Any], bytes]:
    """Return an answer's JSON, and what follows it."""
    body, json_bytes = protocol.write_answer(value, signature, ABOUT, wanted)
    end = len(body) if json_bytes is None else json_bytes
    return json.loads(body[:end]), body[end:]


@pytest.mark.parametrize("data", [[1, 2, 3, 4, 5, 6, 7, 8], [[1, 2, 3, 4], [5, 6, 7, 8]]])
def test_values_come_flat_or_as_they_are_nested(data: list[Any]) -> None:
    value, _ = read({"inputs": [tensor(shape=[2, 4], data=data)]})
    assert value.dtype == np.float32 and value.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_request_has_numbers_as_json_and_as_bytes() -> None:
    left = tensor("left", datatype="FP64", shape=[2], data=[1, 2])
    data = np.array([3, 4], "<f8").tobytes()
    value, _ = read({"inputs": [left, in_binary("right", data, datatype="FP64", shape=[2])]}, PAIR, data)
    assert {name: array.tolist() for name, array in value.items()} == {"left": [1, 2], "right": [3, 4]}


def test_bytes_of_several_tensors_are_in_their_order() -> None:
    data = [np.array(values, "<f8").tobytes() for values in ([5, 6], [7, 8])]
    inputs = [
        in_binary(name, data[index], datatype="FP64", shape=[2])
        for index, name in enumerate(("right", "left"))
    ]
    value, _ = read({"inputs": inputs}, PAIR, b"".join(data))
    assert {name: array.tolist() for name, array in value.items()} == {"left": [7, 8], "right": [5, 6]}


def test_texts_are_bytes_of_the_protocol() -> None:
    signature = signature_of(lambda texts: [text.upper() for text in texts], ["a"])
    asked = tensor(datatype="BYTES", shape=[2], data=["ä", "b"])
    assert read({"inputs": [asked]}, signature)[0] == ["ä", "b"]
    data = b"".join(len(one).to_bytes(4, "little") + one for one in (b"x", b"yz"))
    asked = in_binary("input", data, datatype="BYTES", shape=[2])
    assert read({"inputs": [asked]}, signature, data)[0] == ["x", "yz"]
    assert answer(["X"], Wanted(binary=True), signature)[1] == b"\x01\x00\x00\x00X"
    single = signature_of(str.upper, "a")
    assert read({"inputs": [tensor(datatype="BYTES", shape=[1], data=["a"])]}, single)[0] == "a"


def test_a_json_value_is_one_text() -> None:
    signature = signature_of(lambda value: value, {"words": ["a"]})
    asked = tensor(datatype="BYTES", shape=[1], data=['{"words": []}'])
    assert read({"inputs": [asked]}, signature)[0] == {"words": []}
    (output,) = answer({"words": []}, Wanted(), signature)[0]["outputs"]
    assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", [1], ['{"words":[]}'])


def test_booleans_in_bytes_are_zero_or_not() -> None:
    signature = signature_of(lambda x: x, np.ones(3, np.bool_))
    asked = in_binary("input", b"\x00\x01\x02", datatype="BOOL", shape=[3])
    assert read({"inputs": [asked]}, signature, b"\x00\x01\x02")[0].tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ([], "an object"),
        ({}, "an object with"),
        ({"inputs": [{"shape": [1]}]}, "an object with"),
        ({"inputs": []}, "lacks input"),
        ({"inputs": [tensor("other")]}, "lacks input"),
        ({"inputs": [tensor(), tensor("other")]}, "no input 'other'"),
        ({"inputs": [tensor(shape=[1, 5])]}, "not of the shape"),
        ({"inputs": [tensor(shape=[2, 2])]}, "the model takes"),
        ({"inputs": [tensor(shape=[-1, 4])]}, "no shape"),
        ({"inputs": [tensor(datatype="INT64")]}, "is FP32, not INT64"),
        ({"inputs": [tensor(data=None)]}, "wants numbers"),
        ({"inputs": [tensor(data=["1", "2", "3", "4"])]}, "cannot be read"),
        ({"inputs": [in_binary("input", b"1234")]}, "bytes are left"),
        ({"inputs": [tensor()], "outputs": [{"name": "logits"}]}, "no output 'logits'"),
    ],
)
def test_a_wrong_request_is_refused(request_: Any, told: str) -> None:
    with pytest.raises(ValueRefused, match=told):
        read(request_)


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"12345", "no whole number"), (b"1234" * 5, "follow the last"), (b"", "not of the shape")],
)
def test_wrong_bytes_are_refused(data: bytes, told: str) -> None:
    asked = in_binary("input", data[: 16 if len(data) > 16 else None])
    text = json.dumps({"inputs": [asked]}).encode()
    with pytest.raises(ValueRefused, match=told):
        protocol.read_request(text + data, str(len(text)), TABLE)


@pytest.mark.parametrize("json_bytes", ["x", "-1", "100000"])
def test_a_wrong_header_is_refused(json_bytes: str) -> None:
    with pytest.raises(ValueRefused, match="Inference-Header-Content-Length"):
        protocol.read_request(b"{}", json_bytes, TABLE)


def test_an_answer_has_the_outputs_that_were_asked_for_as_they_were() -> None:
    value = pair(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    inputs = [tensor(name, datatype="FP64", shape=[1], data=[1]) for name in ("left", "right")]
    outputs = [{"name": "product"}, {"name": "total", "parameters": {"binary_data": False}}]
    asked = {"id": "7", "inputs": inputs, "outputs": outputs, "parameters": {"binary_data_output": True}}
    _, wanted = read(asked, PAIR)
    found, binary = answer(value, wanted)
    assert {name: found[name] for name in ("model_name", "model_version", "id")} == {**ABOUT, "id": "7"}
    product, total = found["outputs"]
    assert (product["name"], product["parameters"]) == ("product", {"binary_data_size": 16})
    assert np.frombuffer(binary, "<f8").tolist() == [3, 8]
    assert total == {"name": "total", "datatype": "FP64", "shape": [2], "data": [4.0, 6.0]}


def test_without_a_wish_all_outputs_come_as_json() -> None:
    found, binary = answer(pair(np.ones(1), np.ones(1)), Wanted())
    assert ([one["name"] for one in found["outputs"]], binary) == (["total", "product"], b"")
    assert "id" not in found
