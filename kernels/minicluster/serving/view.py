"""Served models below a cell: an address, the state, and how to ask, as HTML and as text."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from html import escape
from typing import Any

from minicluster.display.tables import Table
from minicluster.display.view import duration
from minicluster.wire.serving.models import ModelDetails, ModelState, ModelVersion, ServedModel
from minicluster.wire.serving.replicas import ANY, ONE, Signature, TensorSpec, TensorType, ValueKind

_EXAMPLE_VALUES = 16
"""More than so many values are not written out in an example of a request."""


def model_line(model: ServedModel) -> str:
    """Return one line: "digits: serving version 2, 2 of 2 replicas answer"."""
    words = f"{model.name}: {model.state.value}"
    if model.state is ModelState.STOPPED:
        return words
    words += f" version {model.serving or model.active}, {model.ready} of {model.replicas} replicas answer"
    return words + (f"; version {model.active} starts" if model.serving not in (0, model.active) else "")


def remarks(details: ModelDetails) -> list[str]:
    """Return what its owner should know: why nothing starts, why a version failed."""
    model = details.model
    active = next((one for one in details.versions if one.number == model.active), None)
    waits = next((one.reason for one in details.replicas if one.reason), "")
    found = [model.note, f"A replica waits: {waits}" if waits else ""]
    if active is not None and active.error:
        found.append(f"Version {active.number}: {active.error}")
    if model.auto is not None and model.state not in (ModelState.STOPPING, ModelState.STOPPED):
        how = "higher" if model.auto.maximize else "lower"
        found.append(f"A job with a {how} {model.auto.metric} replaces version {model.active}.")
    return [line for line in found if line]


def example_json(signature: Signature) -> str:
    """Return the JSON of a small request."""
    kind = signature.input_kind
    if kind is ValueKind.JSON:
        return '"..."'
    if kind is ValueKind.TEXT:
        return '"some text"' if signature.inputs[0].shape == ONE else '["some text"]'
    if kind is ValueKind.TENSOR:
        return json.dumps(_zeros(signature.inputs[0]))
    return json.dumps({spec.name: _zeros(spec) for spec in signature.inputs})


def _zeros(spec: TensorSpec) -> Any:
    shape = [1 if size == ANY else size for size in spec.shape]
    count = 1
    for size in shape:
        count *= size
    if count > _EXAMPLE_VALUES:
        return ["..."]
    value: Any = 0.0 if spec.datatype in (TensorType.FP16, TensorType.FP32, TensorType.FP64) else 0
    for size in reversed(shape):
        value = [value] * size
    return value


def curl(url: str, signature: Signature, *, is_open: bool) -> str:
    """Return a command that asks the model."""
    token = "" if is_open else " -H 'Authorization: Bearer TOKEN'"
    return f"curl{token} -d '{example_json(signature)}' {url}predict"


def python(url: str, signature: Signature, *, is_open: bool) -> str:
    """Return lines of Python that ask the model."""
    token = "" if is_open else ', headers={"Authorization": "Bearer TOKEN"}'
    return f'import httpx\nhttpx.post("{url}predict", json={example_json(signature)}{token}).json()'


def version_of(details: ModelDetails) -> ModelVersion | None:
    """Return the version that answers, or else the one that is wanted."""
    wanted = details.model.serving or details.model.active
    return next((one for one in details.versions if one.number == wanted), None)


def model_text(details: ModelDetails, url: str) -> str:
    version = version_of(details)
    lines = [model_line(details.model), *remarks(details), f"Address: {url}"]
    if version is not None:
        lines += ["", curl(url, version.signature, is_open=details.model.is_open)]
    return "\n".join(lines)


def model_html(details: ModelDetails, url: str, page: str) -> str:
    version, model = version_of(details), details.model
    link = f'<a href="{escape(page)}" target="_blank" rel="noopener">{escape(model_line(model))}</a>'
    body = "<br>".join([f"<b>{link}</b>", *map(escape, remarks(details)), f"<code>{escape(url)}</code>"])
    if version is None:
        return f"<div>{body}</div>"
    how = "\n\n".join(
        (
            curl(url, version.signature, is_open=model.is_open),
            python(url, version.signature, is_open=model.is_open),
        )
    )
    return f"<div>{body}<details><summary>How to ask it</summary><pre>{escape(how)}</pre></details></div>"


def model_table(models: Sequence[ServedModel]) -> Table:
    """List models as `%serve list` shows them."""
    rows = tuple(
        (
            model.name,
            model.state.value,
            str(model.serving or model.active),
            f"{model.ready} of {model.replicas}",
            f"{model.figures.requests}",
            _milliseconds(model.figures.p50_s),
            _milliseconds(model.figures.p99_s),
            str(model.figures.errors),
            duration(time.time() - model.created_at),
        )
        for model in models
    )
    heads = ("model", "state", "version", "replicas", "requests", "p50", "p99", "errors", "age")
    return Table(heads, rows, "You serve no model yet: %serve MODEL --example x")


def version_table(details: ModelDetails) -> Table:
    """List a model's versions, the newest first."""
    model = details.model
    rows = tuple(
        (
            str(one.number),
            _role(one.number, model),
            "" if one.value is None else f"{one.value:.6g}",
            "" if one.trained_by is None else str(one.trained_by),
            one.reason,
            one.error,
        )
        for one in details.versions
    )
    metric = model.auto.metric if model.auto is not None else "value"
    return Table(("version", "", metric, "job", "why", "error"), rows, "It has no version.")


def _role(number: int, model: ServedModel) -> str:
    if number == model.serving:
        return "answers"
    return "starts" if number == model.active else ""


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.1f} ms"
