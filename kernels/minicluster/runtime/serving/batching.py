"""LitServe's loop for batches, without its polling: it asks an empty queue a thousand times a second."""

from __future__ import annotations

from queue import Empty
from typing import Any

from litserve.loops.simple_loops import BatchedLoop

_LOOK_S = 1.0


class _Ahead:
    """A queue whose first item was taken out already."""

    def __init__(self, first: Any, queue: Any) -> None:
        self._first: list[Any] = [first]
        self._queue = queue

    def get(self, timeout: float | None = None) -> Any:
        return self._first.pop() if self._first else self._queue.get(timeout=timeout)

    def get_nowait(self) -> Any:
        return self._first.pop() if self._first else self._queue.get_nowait()


class WaitingLoop(BatchedLoop):
    """Waits for the first request of a batch; from then on, others have the batch's wait to come."""

    def get_batch_requests(self, lit_api: Any, request_queue: Any, transport: Any) -> Any:
        try:
            first = request_queue.get(timeout=_LOOK_S)
        except Empty:
            return [], []
        ahead: Any = _Ahead(first, request_queue)
        return super().get_batch_requests(lit_api, ahead, transport)
