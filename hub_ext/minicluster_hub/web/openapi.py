"""The OpenAPI document, generated from the routes and the messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from minicluster.wire import VERSION_HEADER, WIRE_VERSION, ErrorAnswer, Message
from minicluster_hub.web.route import Query, Route, Who, path_parts

_REF = "#/components/schemas/{model}"


def document(routes: Sequence[Route], prefix: str) -> dict[str, Any]:
    """Return the document as a JSON object."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for path in route.paths:
            operation = {**_operation(route), "deprecated": path != route.path}
            paths.setdefault(f"/{path}", {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Minicluster job service", "version": str(WIRE_VERSION)},
        "servers": [{"url": prefix.rstrip("/")}],
        "paths": paths,
        "components": {"schemas": _schemas(routes), "securitySchemes": _security_schemes()},
    }


def _models(routes: Iterable[Route]) -> list[type[Message]]:
    found = [model for route in routes for model in (route.body, route.answer) if isinstance(model, type)]
    return list(dict.fromkeys([*found, ErrorAnswer]))


def _schemas(routes: Iterable[Route]) -> dict[str, Any]:
    _, schema = models_json_schema([(model, "validation") for model in _models(routes)], ref_template=_REF)
    return json.loads(json.dumps(schema["$defs"]))


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": {
            str(route.status): {"description": route.summary, **_content(route.answer)},
            "default": {"description": "What went wrong", **_content(ErrorAnswer)},
        },
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, **_content(route.body)}
    if route.who not in (Who.ANYONE, Who.MACHINE):
        operation["security"] = [{"hub": [route.scope] if route.scope else []}]
    if route.who in (Who.TASK, Who.DATA_AGENT):
        operation["security"] = [{route.who.value: []}]
    return operation


def _content(what: type[Message] | str | None) -> dict[str, Any]:
    if what is None:
        return {}
    if isinstance(what, str):
        return {"content": {what: {"schema": {"type": "string"}}}}
    return {"content": {"application/json": {"schema": {"$ref": _REF.format(model=what.__name__)}}}}


def _parameters(route: Route) -> list[dict[str, Any]]:
    parts = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": f"^{pattern}$"},
        }
        for name, pattern in path_parts(route).items()
    ]
    query = [
        {"name": query.name, "in": "query", "description": query.text, "schema": _query_schema(query)}
        for query in route.query
    ]
    version = {
        "name": VERSION_HEADER,
        "in": "header",
        "required": route.who is Who.TASK,
        "schema": {"type": "string", "const": str(WIRE_VERSION)},
    }
    return [*parts, *query, version]


def _query_schema(query: Query) -> dict[str, Any]:
    if query.kind != "integer":
        return {"type": query.kind}
    bounds: dict[str, Any] = {"type": "integer", "minimum": query.low, "maximum": query.high}
    return bounds if query.default is None else {**bounds, "default": query.default}


def _security_schemes() -> dict[str, Any]:
    text = "Authorization: {word} TOKEN"
    header = {"type": "apiKey", "in": "header", "name": "Authorization"}
    return {
        "hub": {**header, "description": text.format(word="token") + ", a JupyterHub token with the scopes"},
        "task": {**header, "description": text.format(word="task") + ", given to each task's agent"},
        "keeper": {
            **header,
            "description": text.format(word="keeper") + ", of the nodes' data set agents",
        },
    }
