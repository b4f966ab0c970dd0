"""The OpenAPI document of one model: its plain path and those of the open inference protocol."""

from __future__ import annotations

from typing import Any

from minicluster.wire.serving.replicas import ANY, ONE, Signature, TensorSpec, TensorType, ValueKind
from minicluster_hub.serving.routing import ModelRoute

_NUMBERS = {TensorType.FP16, TensorType.FP32, TensorType.FP64}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "oneOf": [
                {"type": "string"},
                {"type": "object", "description": "of the job service: code, message and hint"},
            ]
        }
    },
}
_REFUSALS = {
    "400": "the request does not fit to the model",
    "401": "there is no token, or it is not known",
    "404": "there is no such model that the token may ask",
    "413": "the request is too long",
    "500": "the model failed",
    "503": "no replica answers now",
    "504": "the model took longer than a request may take",
}


def document(route: ModelRoute, server_url: str) -> dict[str, Any]:
    """Return the document. server_url: of the model's answers."""
    plain = {
        "summary": "Ask the model, with plain JSON",
        "operationId": "predict",
        "requestBody": _body(value_schema(route.signature.input_kind, route.signature.inputs)),
        "responses": _responses(value_schema(route.signature.output_kind, route.signature.outputs)),
    }
    name = route.name
    infer = {
        "summary": "Ask the model, by the open inference protocol",
        "operationId": "infer",
        "requestBody": _body(_v2_schema("inputs", route.signature)),
        "responses": _responses(_v2_schema("outputs", route.signature)),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{route.owner}'s model {name}", "version": str(route.version)},
        "servers": [{"url": server_url}],
        "security": [] if route.is_open else [{"token": []}],
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "a token of the hub"}
            }
        },
        "paths": {
            "/predict": {"post": plain},
            f"/v2/models/{name}/infer": {"post": infer},
            f"/v2/models/{name}": {"get": _get("The model's inputs and outputs", "model")},
            f"/v2/models/{name}/ready": {"get": _get("Whether the model answers", "model_ready")},
            "/v2/health/live": {"get": _get("Whether the server lives", "live")},
            "/v2/health/ready": {"get": _get("Whether the server answers", "ready")},
        },
    }


def value_schema(kind: ValueKind, specs: tuple[TensorSpec, ...]) -> dict[str, Any]:
    """Return the JSON schema of a value as the plain path has it."""
    if kind is ValueKind.JSON:
        return {}
    if kind is ValueKind.TEXT:
        text = {"type": "string"}
        return text if specs[0].shape == ONE else {"type": "array", "items": text}
    if kind is ValueKind.TENSOR:
        return _tensor_schema(specs[0])
    return {
        "type": "object",
        "properties": {spec.name: _tensor_schema(spec) for spec in specs},
        "required": [spec.name for spec in specs],
    }


def _tensor_schema(spec: TensorSpec) -> dict[str, Any]:
    item: dict[str, Any] = {"type": "number" if spec.datatype in _NUMBERS else "integer"}
    if spec.datatype is TensorType.BOOL:
        item = {"type": "boolean"}
    for size in reversed(spec.shape):
        bounds = {} if size == ANY else {"minItems": size, "maxItems": size}
        item = {"type": "array", "items": item, **bounds}
    return item


def _v2_schema(name: str, signature: Signature) -> dict[str, Any]:
    specs = signature.inputs if name == "inputs" else signature.outputs
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"enum": [spec.name for spec in specs]},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "datatype": {"enum": sorted({spec.datatype.value for spec in specs})},
            "data": {"type": "array"},
        },
    }
    return {
        "type": "object",
        "required": [name],
        "properties": {"id": {"type": "string"}, name: {"type": "array", "items": tensor}},
    }


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _responses(schema: dict[str, Any]) -> dict[str, Any]:
    refused = {"content": {"application/json": {"schema": _ERROR}}}
    return {
        "200": {"description": "the answer", "content": {"application/json": {"schema": schema}}},
        **{status: {"description": text, **refused} for status, text in _REFUSALS.items()},
    }


def _get(summary: str, operation: str) -> dict[str, Any]:
    return {"summary": summary, "operationId": operation, "responses": {"200": {"description": "yes"}}}
