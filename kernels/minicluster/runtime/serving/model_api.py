"""What LitServe's process that computes does: it loads the model, and calls it with what requests bring.

LitServe starts that process anew, so an object of this class travels there by pickle: it holds paths, no
model.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import litserve
from fastapi import Response

from minicluster.capture.cell import CellSource
from minicluster.capture.payload import CellPayload
from minicluster.capture.sources import Source, register_sources
from minicluster.pickling import pickling
from minicluster.runtime.paths import write_whole
from minicluster.runtime.rank.parts import PartStore
from minicluster.runtime.serving.batching import WaitingLoop
from minicluster.runtime.serving.trained import trained_names
from minicluster.serving import tensors
from minicluster.serving.calling import caller
from minicluster.serving.tensors import ValueRefused
from minicluster.wire.serving.replicas import ReplicaOf

JSON_TYPE, BYTES_TYPE = "application/json", "application/octet-stream"
HEADER_LENGTH = "Inference-Header-Content-Length"
"""Of the binary extension: how many bytes of the body are JSON."""
UNUSED_PATH = "/litserve"
"""LitServe's own path: it would answer what is no JSON as an error of the model."""
_FAILED = "the model failed on this request; its owner finds the error in the log of the replica"

log = logging.getLogger("minicluster.serving")


class NoModel(Exception):
    """There is nothing that could be served."""


@dataclass(frozen=True)
class Asked:
    """A request that was read. v2: the head of its answer; None: it came to /predict. binary: as it asked."""

    value: Any
    v2: dict[str, Any] | None = None
    binary: bool = False


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
        with warnings.catch_warnings(action="ignore"):
            # It warns of `batch` and `unbatch` where there are no batches, which do not call them.
            super().__init__(
                max_batch_size=options.batch,
                api_path=UNUSED_PATH,
                batch_timeout=options.batch_wait_s if options.batch > 1 else 0.0,
                loop=WaitingLoop() if options.batch > 1 else "auto",
            )
        self.serve = serve
        self.files = files
        self.model: Any = None
        self.call: Callable[[Any], Any] = _not_loaded

    async def authorize(self) -> None:
        """Nothing: the gate in front has checked the secret. LitServe's own check would run in a thread."""

    def setup(self, device: str) -> None:
        """Load the model. Raises what its code raises, after writing down why."""
        try:
            self.model = load_model(self.serve, self.files)
            self.call = caller(self.model, self.serve.signature, device)
        except BaseException as error:
            account = {"message": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            write_whole(self.files.trouble, json.dumps(account).encode())
            raise

    # LitServe tells the type of requests by the annotation of `request`: without one, it is any JSON.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        """Return what was asked, or an answer that refuses it."""
        if isinstance(request, Asked):
            return request
        try:
            return Asked(tensors.read_plain(request, self.serve.signature))
        except ValueRefused as refused:
            return refusal(refused)

    def batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return inputs

    def unbatch(self, output: Sequence[Any]) -> list[Any]:
        return list(output)

    def predict(self, x: Any, **_kwargs: Any) -> Any:
        """Return the answer to a request; with batches, the answers to several."""
        if isinstance(x, Asked | Response):
            return self._answers([x])[0]
        return self._answers(list(x))

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        return output

    def _answers(self, asked: list[Asked | Response]) -> list[Response]:
        """Return one answer to each request. If they fail together, each is tried alone."""
        wanted = [(place, one) for place, one in enumerate(asked) if isinstance(one, Asked)]
        answers: dict[int, Response] = {
            place: one for place, one in enumerate(asked) if isinstance(one, Response)
        }
        found = self._compute([one for _, one in wanted])
        answers.update({place: answer for (place, _), answer in zip(wanted, found, strict=True)})
        return [answers[place] for place in range(len(asked))]

    def _compute(self, asked: list[Asked]) -> list[Response]:
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
        except Exception:
            # The asker may be anybody: what the model says is for its owner.
            log.exception("the model failed on a request")
            return answer(500, _FAILED)

    def _written(self, asked: Asked, output: Any) -> Response:
        signature = self.serve.signature
        if asked.v2 is None:
            return Response(tensors.write_plain(output, signature), media_type=JSON_TYPE)
        body, head = tensors.write_v2(output, signature, asked.v2, binary=asked.binary)
        if head is None:
            return Response(body, media_type=JSON_TYPE)
        return Response(body, media_type=BYTES_TYPE, headers={HEADER_LENGTH: str(head)})


def _not_loaded(_value: Any) -> Any:
    raise NoModel("the model is not loaded yet")


def answer(status: int, message: str) -> Response:
    """Return an error as the protocol writes it."""
    return Response(json.dumps({"error": message}), status_code=status, media_type=JSON_TYPE)


def refusal(refused: ValueRefused) -> Response:
    return answer(400, refused.message)


def load_model(serve: ReplicaOf, files: ReplicaFiles) -> Any:
    """Return the value of the cell, with what a later job made of the model. Raises what the cell raises."""
    payload = CellPayload.from_bytes(files.payload.read_bytes())
    register_sources({**payload.sources, payload.filename: Source(payload.filename, payload.source)})
    namespace = vars(sys.modules["__main__"])
    parts = PartStore(files.scratch)
    names, _ = pickling.load_all(payload.open_names(parts.memory), namespace)
    namespace.update(names)
    if serve.trained_by is not None:
        namespace.update(trained_names(serve.trained_by, serve.variable, parts, namespace))
    cell = CellSource.parse(payload.source, payload.filename)
    exec(cell.body, namespace)  # noqa: S102 - running the owner's cell is the purpose
    if cell.value is None:
        raise NoModel("the cell has no value that could be served")
    return eval(cell.value, namespace)  # noqa: S307 - as above
