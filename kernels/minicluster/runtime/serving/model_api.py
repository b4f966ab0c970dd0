"""What LitServe's process that computes does: it loads the model, and calls it with what requests bring.

LitServe starts that process anew, so an object of this class travels there by pickle: it holds paths, no
model.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import litserve
import torch
from starlette.exceptions import HTTPException
from starlette.responses import Response

from minicluster.capture import versions
from minicluster.capture.cell import CellSource
from minicluster.capture.payload import CellPayload
from minicluster.capture.sources import Source, register_sources
from minicluster.pickling import pickling
from minicluster.runtime.diagnosis.stacks import DUMP_SIGNAL
from minicluster.runtime.paths import write_whole
from minicluster.runtime.rank.groups import device as gpu
from minicluster.runtime.rank.parts import PartStore
from minicluster.runtime.serving.batching import WaitingLoop
from minicluster.runtime.serving.trained import trained_names
from minicluster.serving import protocol, tensors
from minicluster.serving.calling import NotServable, caller, is_module
from minicluster.serving.protocol import HEADER_LENGTH, Wanted
from minicluster.serving.tensors import ValueRefused
from minicluster.wire import Versions
from minicluster.wire.serving.replicas import ReplicaOf

JSON_TYPE, BYTES_TYPE = "application/json", "application/octet-stream"
_FAILED = "the model failed on this request; its owner finds the error in the log of the replica"
_ANSWERED_S = 1.0
"""Within this time, the answer to the request on which the GPU failed has left."""

log = logging.getLogger("minicluster.serving")


@dataclass(frozen=True, repr=False)
class Asked:
    """A request that was read. wanted: what it asked by the protocol; None: it came to /predict.

    It has no repr of its own: LitServe makes one of each request, for a message that is not shown.
    """

    value: Any
    wanted: Wanted | None = None


@dataclass(frozen=True)
class ReplicaFiles:
    """payload: the cell. scratch: the task's folder. trouble: where to write why no model is loaded."""

    payload: Path
    scratch: Path
    trouble: Path


class ModelAPI(litserve.LitAPI):
    """LitServe's interface to the model of a cell."""

    def __init__(self, serve: ReplicaOf, files: ReplicaFiles) -> None:
        options = serve.options
        super().__init__(
            max_batch_size=options.batch,
            batch_timeout=options.batch_wait_s if options.batch > 1 else 0.0,
            loop=WaitingLoop() if options.batch > 1 else "auto",
        )
        self.serve = serve
        self.files = files
        self.call: Callable[[Any], Any] = _not_loaded

    def setup(self, device: str) -> None:
        """Load the model. Raises what its code raises, after writing down why."""
        # The interrupt of a job that is stopped comes to all its processes. The rank ends this one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.register(DUMP_SIGNAL, all_threads=False, chain=False)
        try:
            gpu.choose(0, 1)
            model = load_model(self.serve, self.files)
            if is_module(model):
                model.to(device)
            self.call = caller(model, self.serve.signature, device)
        except BaseException as error:
            write_whole(self.files.trouble, f"{type(error).__name__}: {error}".encode(errors="replace"))
            raise

    def predict(self, x: Any, **_kwargs: Any) -> Any:
        """Return the answer to a request; with batches, the answers to several."""
        with torch.inference_mode():
            return self._one(x) if isinstance(x, Asked) else self._several(list(x))

    def _several(self, asked: list[Asked]) -> list[Response]:
        """Return one answer to each request. If they fail together, each is tried alone."""
        if len(asked) > 1 and self.serve.signature.batched:
            try:
                values = [one.value for one in asked]
                whole = self.call(tensors.together(values))
                outputs = tensors.apart(whole, [tensors.samples(value) for value in values])
                return [self._written(one, output) for one, output in zip(asked, outputs, strict=True)]
            except Exception:
                log.exception("a batch of %s requests failed; each is tried alone", len(asked))
        return [self._one(one) for one in asked]

    def _one(self, asked: Asked) -> Response:
        try:
            return self._written(asked, self.call(asked.value))
        except HTTPException as told:
            # This is what the model has to say to the asker.
            return answer(told.status_code, str(told.detail))
        except ValueRefused as refused:
            log.error("the model's answer cannot be sent: %s", refused.message)
            return answer(500, f"the model's answer cannot be sent: {refused.message}")
        except (Exception, SystemExit):
            # The asker may be anybody: any other error is for the model's owner.
            log.exception("the model failed on a request")
            self._end_without_gpu()
            return answer(500, _FAILED)

    def _written(self, asked: Asked, output: Any) -> Response:
        serve = self.serve
        if asked.wanted is None:
            return Response(tensors.as_json(output), media_type=JSON_TYPE)
        about = {"model_name": serve.name, "model_version": str(serve.version)}
        body, json_bytes = protocol.write_answer(output, serve.signature, about, asked.wanted)
        if json_bytes is None:
            return Response(body, media_type=JSON_TYPE)
        return Response(body, media_type=BYTES_TYPE, headers={HEADER_LENGTH: str(json_bytes)})

    def _end_without_gpu(self) -> None:
        """End this process soon if its GPU refuses it: then another replica is started.

        After a failed check on the GPU (an index out of range, say), all further calls of a process fail.
        """
        if not (self.device or "").startswith("cuda"):
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            log.error("the GPU takes nothing more from this process, so it ends")
            threading.Timer(_ANSWERED_S, os._exit, (1,)).start()


def _not_loaded(_value: Any) -> Any:
    raise NotServable("the model is not loaded yet")


def answer(status: int, message: str) -> Response:
    """Return an error as the protocol writes it."""
    return Response(json.dumps({"error": message}), status_code=status, media_type=JSON_TYPE)


def load_model(serve: ReplicaOf, files: ReplicaFiles) -> Any:
    """Return the value of the cell, with what a later job made of the model. Raises what the cell raises."""
    payload = CellPayload.from_bytes(files.payload.read_bytes())
    register_sources({**payload.sources, payload.filename: Source(payload.filename, payload.source)})
    namespace = vars(sys.modules["__main__"])
    parts = PartStore(files.scratch)
    namespace.update(_names(payload, parts, namespace))
    if serve.trained_by is not None:
        namespace.update(trained_names(serve.trained_by, serve.variable, parts, namespace))
    cell = CellSource.parse(payload.source, payload.filename)
    exec(cell.body, namespace)  # noqa: S102 - running the owner's cell is the purpose
    if cell.value is None:
        raise NotServable("the cell has no value that could be served")
    return eval(cell.value, namespace)  # noqa: S307 - as above


def _names(payload: CellPayload, parts: PartStore, namespace: dict[str, Any]) -> dict[str, Any]:
    ours, theirs = Versions(python=platform.python_version()), Versions.model_validate(payload.versions)
    foreign = bool(versions.code_refusal(ours, theirs))
    try:
        names, _ = pickling.load_shared(payload.open_names(parts.memory), payload.shared, namespace, foreign)
    except pickling.ForeignCode as error:
        raise NotServable(
            f"{error}, in Python {theirs.python}; the replica has Python {ours.python}",
            "Put it into a .py file beside the notebook, and import it; or choose another --image.",
        ) from None
    return names
