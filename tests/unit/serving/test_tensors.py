"""Values of models as arrays and as plain JSON, and how an example describes a model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from minicluster.serving import tensors
from minicluster.serving.example import ExampleFailed, signature_of
from minicluster.serving.tensors import ValueRefused
from minicluster.wire.serving.replicas import ANY, TensorSpec, TensorType, ValueKind

NET = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))


def pair(left, right):
    return {"total": left + right, "product": left * right}


def upper(texts):
    return [text.upper() for text in texts]


def test_a_module_is_described_and_left_as_it_was() -> None:
    NET.train()
    found = signature_of(NET, torch.rand(2, 4))
    assert found.inputs == (TensorSpec(name="input", datatype=TensorType.FP32, shape=(ANY, 4)),)
    assert found.outputs == (TensorSpec(name="output", datatype=TensorType.FP32, shape=(ANY, 3)),)
    assert found.batched and found.torch
    assert all(one.training for one in NET.modules())


def test_what_a_module_keeps_of_its_example_can_be_trained_with() -> None:
    class Keeps(torch.nn.Module):
        def forward(self, x):
            self.kept = x * 2
            return self.kept

    model = Keeps()
    signature_of(model, torch.ones(1, 2))
    (model.kept * torch.ones(1, 2, requires_grad=True)).sum().backward()


def test_a_function_of_named_arrays_is_described() -> None:
    found = signature_of(pair, {"left": np.ones(3, np.int64), "right": np.ones(3, np.int64)})
    assert [(one.name, one.datatype, one.shape) for one in found.inputs] == [
        ("left", TensorType.INT64, (ANY,)),
        ("right", TensorType.INT64, (ANY,)),
    ]
    assert (found.input_kind, found.output_kind, found.torch) == (ValueKind.NAMED, ValueKind.NAMED, False)


def test_texts_and_plain_values_are_described() -> None:
    texts = signature_of(upper, ["a", "b"])
    assert (texts.input_kind, texts.output_kind, texts.batched) == (ValueKind.TEXT, ValueKind.TEXT, True)
    assert texts.inputs[0].shape == (ANY,)
    one = signature_of(str.upper, "a")
    assert (one.inputs[0].shape, one.batched) == ((1,), False)
    plain = signature_of(lambda value: {"length": len(value["words"])}, {"words": ["a"]})
    assert (plain.input_kind, plain.output_kind, plain.batched) == (ValueKind.JSON, ValueKind.JSON, False)
    assert not signature_of(list, [1, 2]).batched, "the next request may be no list"


@pytest.mark.parametrize(
    "model",
    [
        lambda x: x.sum(dim=0, keepdim=True),
        lambda x: {"each": x, "of_all": x.sum().reshape(1)},
        lambda x: {"each": x, "of_all": x.sum()},
    ],
)
def test_what_mixes_samples_is_not_batched(model) -> None:
    found = signature_of(model, torch.rand(1, 4))
    assert not found.batched
    assert found.inputs[0].shape == (1, 4)


@pytest.mark.parametrize(
    ("model", "example", "told"),
    [
        (NET, torch.rand(2, 5), "fails on its example"),
        (lambda x: object(), torch.rand(1), "cannot be an answer"),
        (lambda x: x, torch.rand(1, 2, dtype=torch.complex64), "cannot come in a request"),
        (lambda x: x, {"no-name": torch.rand(1)}, "cannot be described"),
    ],
)
def test_a_model_that_does_not_take_its_example_is_told(model, example, told) -> None:
    with pytest.raises(ExampleFailed, match=told):
        signature_of(model, example)


def test_plain_json_is_read_and_written() -> None:
    signature = signature_of(NET, torch.rand(1, 4))
    read = tensors.read_plain([[1, 2, 3, 4.5]], signature)
    assert read.dtype == np.float32 and read.tolist() == [[1, 2, 3, 4.5]]
    assert json.loads(tensors.as_json({"scores": torch.tensor([[0.5]])})) == {"scores": [[0.5]]}


def test_one_text_stays_one() -> None:
    one, several = signature_of(str.upper, "a"), signature_of(upper, ["a"])
    assert tensors.read_plain("b", one) == tensors.read_plain(["b"], one) == "b"
    assert tensors.read_plain("b", several) == ["b"]
    with pytest.raises(ValueRefused, match="takes one string, not 2"):
        tensors.read_plain(["b", "c"], one)


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
        tensors.read_plain(value, signature_of(NET, torch.rand(1, 4)))


@pytest.mark.parametrize("value", [[1.5], [300], [-1], [float("nan")]])
def test_no_number_becomes_another_one(value) -> None:
    signature = signature_of(lambda x: x, np.ones(1, np.uint8))
    assert tensors.read_plain([255.0], signature).tolist() == [255]
    with pytest.raises(ValueRefused, match="cannot be read as UINT8"):
        tensors.read_plain(value, signature)


def test_inputs_of_a_batch_have_as_many_samples_each() -> None:
    signature = signature_of(pair, {"left": np.ones(1), "right": np.ones(1)})
    assert signature.batched
    with pytest.raises(ValueRefused, match="left has 2, right has 1"):
        tensors.read_plain({"left": [1, 2], "right": [1]}, signature)


def test_requests_are_computed_together_and_told_apart() -> None:
    one, other = np.ones((1, 2)), np.zeros((2, 2))
    whole = tensors.together([one, other])
    assert [part.shape for part in tensors.apart(whole, [1, 2])] == [(1, 2), (2, 2)]
    with pytest.raises(ValueRefused, match="returned 3 answers to 4"):
        tensors.apart(whole, [2, 2])
    with pytest.raises(ValueRefused, match="returned 1 answers to 3"):
        tensors.apart({"each": whole, "of_all": np.ones(1)}, [1, 2])


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused(text) -> None:
    with pytest.raises(ValueRefused, match="no JSON"):
        tensors.from_json(text)


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueRefused, match="JSON"):
        tensors.as_json([float("nan")])
