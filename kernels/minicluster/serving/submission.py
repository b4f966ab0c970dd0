"""%serve MODEL: runs the example, sends the model, and waits until it answers."""

from __future__ import annotations

import time
import uuid
from typing import Any

from minicluster.cell_run import RunContext, capture_cell, upload
from minicluster.errors import MiniclusterError
from minicluster.options import OptionWrong
from minicluster.serving.calls import ModelCalls
from minicluster.serving.example import signature_of
from minicluster.serving.live import LiveModel
from minicluster.serving.options import ServeOptions
from minicluster.serving.view import model_line, remarks
from minicluster.wire.serving.models import ModelDetails, ModelState, ModelSubmit
from minicluster.wire.serving.replicas import ReplicaOptions, Signature

_PAUSE_S = 0.1


class ModelFailed(MiniclusterError):
    """The replicas of the new version do not come up."""


def serve(options: ServeOptions, filename: str, context: RunContext) -> LiveModel:
    """Serve a model of the notebook. Raises ExampleFailed before anything is sent; ModelFailed.

    An interrupt ends the wait; the model goes on.
    """
    model, example = _named(options.model, context), _named(options.example, context)
    signature = signature_of(model, example)
    if options.batch > 1 and not signature.batched:
        raise OptionWrong(
            f"{options.model} does not answer two examples behind one another with two answers.",
            "Leave out --batch; or have its first dimension count samples, of the example and of the answer.",
        )
    calls = ModelCalls(context.service)
    request = _request(options, signature, filename, context)
    served = calls.submit(request)
    details = calls.details(served.id)
    live = LiveModel(calls, details)
    if not options.detach:
        _wait(calls, details, context)
    return live


def _named(expression: str, context: RunContext) -> Any:
    """Return what a word of the line names. Raises OptionWrong."""
    try:
        return eval(expression, context.namespace)  # noqa: S307 - the notebook's own code, in its own kernel
    except Exception as error:
        raise OptionWrong(
            f"{expression}: {type(error).__name__}: {error}",
            "Like this: %serve model --name digits --example x",
        ) from None


def _request(options: ServeOptions, signature: Signature, filename: str, context: RunContext) -> ModelSubmit:
    """Upload the cell whose value is the model; return the request."""
    source = f"# %serve {context.line}\n{options.model}\n"
    captured, cell = capture_cell(source, filename, options.cell, context)
    uploaded = upload(captured, cell, options.cell, context)
    return ModelSubmit(
        idempotency_key=uuid.uuid4().hex,
        name=options.name,
        spec=uploaded.spec,
        signature=signature,
        options=ReplicaOptions(
            batch=options.batch,
            batch_wait_s=options.batch_wait_s,
            timeout_s=options.timeout_s,
            open_requests=options.open_requests,
            request_bytes=options.request_bytes,
        ),
        variable=options.variable,
        replicas=options.replicas,
        shared=options.shared,
        is_open=options.is_open,
        auto=options.auto,
        value=options.value,
        run=uploaded.origin,
    )


def _wait(calls: ModelCalls, details: ModelDetails, context: RunContext) -> None:
    """Show how a version comes up, until it answers. Raises ModelFailed."""
    wanted, shown = details.model.active, ""
    while True:
        model = details.model
        text = " ".join([model_line(model), *remarks(details)])
        if text != shown:
            shown = text
            print(text)  # noqa: T201
        if model.serving == wanted and model.state is ModelState.SERVING:
            return
        failed = next((one.error for one in details.versions if one.number == wanted), "")
        if model.active != wanted or model.state is ModelState.FAILING:
            raise ModelFailed(
                f"Version {wanted} of {model.name} does not come up: {failed or 'another one was activated'}",
                f"%serve logs {model.name} shows what its replicas printed.",
            )
        if model.state in (ModelState.STOPPING, ModelState.STOPPED):
            raise ModelFailed(f"{model.name} was stopped while version {wanted} started.")
        job = max((one.job_id for one in details.replicas), default=0)
        context.kernel.stay_busy(job, model.created_at)
        time.sleep(_PAUSE_S)
        details = calls.details(model.id, details.version)
