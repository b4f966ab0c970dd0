"""Values of models as JSON and as tensors of the open inference protocol."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from minicluster.serving import tensors
from minicluster.serving.example import ExampleFailed, signature_of
from minicluster.serving.tensors import ValueRefused
from minicluster.wire.serving.replicas import ANY, Signature, TensorSpec, TensorType, ValueKind

NET = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))


def pair(left, right):
    return {"total": left + right, "product": left * right}


def upper(texts):
    return [text.upper() for text in texts]


def describe(model, example) -> Signature:
    return signature_of(model, example)


def test_a_module_is_described_and_left_as_it_was() -> None:
    NET.train()
    found = describe(NET, torch.rand(2, 4))
    assert found.inputs == (TensorSpec(name="input", datatype=TensorType.FP32, shape=(ANY, 4)),)
    assert found.outputs == (TensorSpec(name="output", datatype=TensorType.FP32, shape=(ANY, 3)),)
    assert found.batched and found.torch
    assert all(one.training for one in NET.modules())


def test_a_function_of_named_arrays_is_described() -> None:
    found = describe(pair, {"left": np.ones(3, np.int64), "right": np.ones(3, np.int64)})
    assert [(one.name, one.datatype, one.shape) for one in found.inputs] == [
        ("left", TensorType.INT64, (ANY,)),
        ("right", TensorType.INT64, (ANY,)),
    ]
    assert (found.input_kind, found.output_kind, found.torch) == (ValueKind.NAMED, ValueKind.NAMED, False)


def test_texts_and_plain_values_are_described() -> None:
    text = describe(upper, ["a", "b"])
    assert (text.input_kind, text.output_kind, text.batched) == (ValueKind.TEXT, ValueKind.TEXT, True)
    plain = describe(lambda value: {"length": len(value["words"])}, {"words": ["a"]})
    assert (plain.input_kind, plain.output_kind, plain.batched) == (ValueKind.JSON, ValueKind.JSON, False)


def test_what_mixes_samples_is_not_batched() -> None:
    found = describe(lambda x: x.sum(dim=0, keepdim=True), torch.rand(2, 4))
    assert not found.batched
    assert found.inputs[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("model", "example", "told"),
    [
        (NET, torch.rand(2, 5), "fails on its example"),
        (lambda x: object(), torch.rand(1), "cannot be an answer"),
        (lambda x: x / 0, torch.rand(1, 2) * float("nan"), ""),
    ],
)
def test_a_model_that_does_not_take_its_example_is_told(model, example, told) -> None:
    if told:
        with pytest.raises(ExampleFailed, match=told):
            describe(model, example)
    else:
        assert describe(model, example).outputs[0].shape == (ANY, 2)


def test_plain_json_is_read_and_written() -> None:
    signature = describe(NET, torch.rand(1, 4))
    read = tensors.read_plain([[1, 2, 3, 4.5]], signature)
    assert read.dtype == np.float32 and read.tolist() == [[1, 2, 3, 4.5]]
    assert json.loads(tensors.write_plain(torch.tensor([[0.5]]), signature)) == [[0.5]]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([[1, 2, 3]], "the shape"),
        ([[1, 2], [3]], "cannot be read"),
        ("text", "wants numbers"),
        ([["a", "b", "c", "d"]], "cannot be read"),
        ({"input": [[1, 2, 3, 4]]}, "wants numbers"),
        (None, "wants numbers"),
    ],
)
def test_what_does_not_fit_is_refused(value, told) -> None:
    with pytest.raises(ValueRefused, match=told):
        tensors.read_plain(value, describe(NET, torch.rand(1, 4)))


def test_a_request_of_the_protocol_is_read_in_both_forms() -> None:
    signature = describe(pair, {"left": np.ones(2, np.float64), "right": np.ones(2, np.float64)})
    left = {"name": "left", "datatype": "FP64", "shape": [2], "data": [1, 2]}
    binary = np.array([3, 4], "<f8").tobytes()
    right = {
        "name": "right",
        "datatype": "FP64",
        "shape": [2],
        "parameters": {"binary_data_size": len(binary)},
    }
    read = tensors.read_v2({"inputs": [left, right]}, binary, signature)
    assert {name: array.tolist() for name, array in read.items()} == {"left": [1, 2], "right": [3, 4]}
    body, head = tensors.write_v2(pair(**read), signature, {"model_name": "pair"})
    assert head is None
    assert json.loads(body)["outputs"][0] == {
        "name": "total",
        "datatype": "FP64",
        "shape": [2],
        "data": [4.0, 6.0],
    }
    body, head = tensors.write_v2(pair(**read), signature, {}, binary=True)
    outputs = json.loads(body[:head])["outputs"]
    assert [one["parameters"]["binary_data_size"] for one in outputs] == [16, 16]
    assert np.frombuffer(body[head:], "<f8").tolist() == [4, 6, 3, 8]


def test_texts_are_bytes_of_the_protocol() -> None:
    signature = describe(upper, ["a"])
    tensor = {"name": "input", "datatype": "BYTES", "shape": [2], "data": ["ä", "b"]}
    assert tensors.read_v2({"inputs": [tensor]}, b"", signature) == ["ä", "b"]
    data = b"".join(len(one).to_bytes(4, "little") + one for one in (b"x", b"yz"))
    asked = {**tensor, "parameters": {"binary_data_size": len(data)}}
    del asked["data"]
    assert tensors.read_v2({"inputs": [asked]}, data, signature) == ["x", "yz"]


@pytest.mark.parametrize(
    "inputs",
    [
        None,
        [],
        [{"name": "other", "shape": [1, 4], "data": [1, 2, 3, 4]}],
        [{"name": "input", "shape": [1, 5], "data": [1, 2, 3, 4]}],
        [{"name": "input", "shape": [-1, 4], "data": [1, 2, 3, 4]}],
        [{"name": "input", "datatype": "INT64", "shape": [1, 4], "data": [1, 2, 3, 4]}],
        [{"name": "input", "shape": [1, 4], "parameters": {"binary_data_size": 99}}],
        [{"name": "input", "shape": [1, 4]}],
    ],
)
def test_a_wrong_request_of_the_protocol_is_refused(inputs) -> None:
    with pytest.raises(ValueRefused):
        tensors.read_v2({"inputs": inputs}, b"1234", describe(NET, torch.rand(1, 4)))


def test_requests_are_computed_together_and_told_apart() -> None:
    one, other = np.ones((1, 2)), np.zeros((2, 2))
    whole = tensors.together([one, other])
    assert [part.shape for part in tensors.apart(whole, [1, 2])] == [(1, 2), (2, 2)]
    with pytest.raises(ValueRefused, match="returned 3 answers to 4"):
        tensors.apart(whole, [2, 2])


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueRefused, match="JSON"):
        tensors.as_json([float("nan")])
