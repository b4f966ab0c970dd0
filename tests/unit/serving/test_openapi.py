"""The JSON schemas of what a model takes and returns."""

from __future__ import annotations

from typing import Any

import pytest

from minicluster.wire.serving.replicas import ANY, ONE, TensorSpec, TensorType, ValueKind
from minicluster_hub.serving.openapi import value_schema

STRING = {"type": "string"}
PAIRS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}


@pytest.mark.parametrize(
    ("kind", "datatype", "shape", "schema"),
    [
        (ValueKind.TEXT, TensorType.BYTES, ONE, STRING),
        (ValueKind.TEXT, TensorType.BYTES, (ANY,), {"type": "array", "items": STRING}),
        (ValueKind.JSON, TensorType.BYTES, ONE, {}),
        (ValueKind.TENSOR, TensorType.FP32, (ANY, 2), {"type": "array", "items": PAIRS}),
        (ValueKind.TENSOR, TensorType.BOOL, (), {"type": "boolean"}),
    ],
)
def test_a_value_has_the_schema_of_its_kind(
    kind: ValueKind, datatype: TensorType, shape: tuple[int, ...], schema: dict[str, Any]
) -> None:
    assert value_schema(kind, (TensorSpec(name="input", datatype=datatype, shape=shape),)) == schema
