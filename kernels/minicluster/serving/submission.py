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
from minicluster.wire.serving.replicas import Signature

_PAUSE_S = 0.1


class ModelFailed(MiniclusterError):
    """The replicas of the new version do not come up."""


def serve(options: ServeOptions, filename: str, context: RunContext) -> LiveModel:
    """Serve a model of the notebook. Raises ExampleFailed before anything is sent; ModelFailed.

    An interrupt ends the wait; the model goes on.
    """
    model, example = _named(options.model, context), _named(options.example, context)
    signature = signature_of(model, example)
    if options.replica.batch > 1 and not signature.batched:
        raise OptionWrong(
            f"{options.model} does not answer two examples behind one another with two answers.",
            "Leave out --batch; or have its first dimension count samples, of the example and of the answer.",
        )
    calls = ModelCalls(context.service)
    served = calls.submit(_request(options, signature, filename, context))
    details = calls.details(served.id)
    if not options.detach:
        try:
            details = _answering(calls, details, served.active, context)
        except KeyboardInterrupt:
            print(f"{served.name} goes on; %serve stop {served.name} ends it.")  # noqa: T201
    return LiveModel(calls, details)


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
        options=options.replica,
        variable=options.variable,
        replicas=options.replicas,
        shared=options.shared,
        is_open=options.is_open,
        auto=options.auto,
        value=options.value,
        run=uploaded.origin,
    )


def _answering(calls: ModelCalls, details: ModelDetails, wanted: int, context: RunContext) -> ModelDetails:
    """Show how a version comes up; return the model once it answers. Raises ModelFailed."""
    shown = ""
    while True:
        model = details.model
        text = " ".join([model_line(model), *remarks(details)])
        if text != shown:
            shown = text
            print(text)  # noqa: T201
        if model.serving == wanted and model.state is ModelState.SERVING:
            return details
        failed = next((one.error for one in details.versions if one.number == wanted), "")
        if model.active != wanted or model.state is ModelState.FAILING:
            raise ModelFailed(
                f"Version {wanted} of {model.name} does not come up: {failed or 'another one was activated'}",
                f"%serve logs {model.name} shows what its replicas printed.",
            )
        if model.state in (ModelState.STOPPING, ModelState.STOPPED):
            raise ModelFailed(f"{model.name} was stopped while version {wanted} started.")
        context.kernel.stay_busy(0, 0.0)
        time.sleep(_PAUSE_S)
        details = calls.details(model.id, details.version)
