"""Reads a job's event stream to its end; after a cut it resumes without losing or repeating events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError, retry_after_s
from minicluster.wire import Displays, ErrorAnswer, Job, LogChunk, Records
from minicluster.wire.streams import SmallResult

if TYPE_CHECKING:
    from httpx_sse import ServerSentEvent

_CALM_S = 15.0
_MESSAGES = {"job": Job, "log": LogChunk, "records": Records, "displays": Displays, "result": SmallResult}


@dataclass(frozen=True)
class ConnectionStatus:
    """The state of the connection. lost: why it was cut; empty if it is open again.

    at: Unix time of this change, in seconds. disconnected_s: how long the connection has been cut.
    """

    lost: str
    retry_in_s: float = 0.0
    at: float = 0.0
    disconnected_s: float = 0.0


@dataclass(frozen=True)
class Ended:
    """The last event, after all output: the job in its final state."""

    job: Job


def follow(
    service: JobServiceClient,
    job_id: int,
    over: Callable[[], bool] = lambda: False,
    cell: int = 0,
    *,
    with_result: bool = False,
) -> Iterator[Job | LogChunk | Displays | Records | SmallResult | ConnectionStatus | Ended]:
    """Yield all events of a job, or of a cell of a session, until it ends or `over` returns True.

    It reconnects as often as needed, and yields a `ConnectionStatus` when the connection is cut and when it
    is open again. with_result: a small result comes before the end. Raises ServiceError if the service
    refuses, for example for an unknown job.
    """
    import httpx

    path = f"api/jobs/{job_id}/cells/{cell}/events" if cell else f"api/jobs/{job_id}/events"
    path += "?result=1" if with_result else ""
    last_id, delay_s, lost, since = "", 0.1, False, 0.0
    while True:
        asked_s = 0.0
        opened = time.monotonic()
        try:
            for block in _events(service, path, last_id, over):
                if lost:
                    yield ConnectionStatus("", at=time.time(), disconnected_s=time.monotonic() - since)
                lost, last_id = False, block.id or last_id
                event = _parsed(block)
                if event is not None:
                    yield event
                if isinstance(event, Ended):
                    return
            if over():
                return
            why = "the connection was closed"
        except httpx.TransportError as error:
            why = f"{type(error).__name__}: {error}".rstrip(": ")
        except _StreamUnavailable as error:
            why, asked_s = str(error), error.wait_s
        delay_s = 0.1 if time.monotonic() - opened > _CALM_S else min(5.0, delay_s * 2)
        delay_s = max(delay_s, asked_s)
        if not lost:
            lost, since = True, time.monotonic()
        yield ConnectionStatus(why, delay_s, time.time(), time.monotonic() - since)
        time.sleep(delay_s)


class _StreamUnavailable(Exception):
    """The proxy cannot reach the service now, or the service has too many readers."""

    def __init__(self, why: str, wait_s: float) -> None:
        super().__init__(why)
        self.wait_s = wait_s


def _events(
    service: JobServiceClient, path: str, last_id: str, over: Callable[[], bool]
) -> Iterator[ServerSentEvent]:
    with _opened(service, path, last_id) as answer:
        yield from _blocks(answer, over)


@contextmanager
def _opened(service: JobServiceClient, path: str, last_id: str = "") -> Iterator[Any]:
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last_id} if last_id else {})}
    with service.stream(path, headers) as answer:
        if answer.status_code >= 400:
            answer.read()
            if answer.status_code >= 500 or service.is_retryable(answer):
                raise _StreamUnavailable(service.retry_reason(answer), retry_after_s(answer))
            service.check(answer)
        yield answer


def _blocks(answer: Any, over: Callable[[], bool]) -> Iterator[ServerSentEvent]:
    # Imported here, since it imports httpx.
    from httpx_sse import EventSource

    # The service sends a comment, which is not an event, at least every 15 s.
    wanted = SimpleNamespace(
        headers=answer.headers, iter_text=lambda: takewhile(lambda _: not over(), answer.iter_text())
    )
    yield from EventSource(cast(Any, wanted)).iter_sse()


def _parsed(block: ServerSentEvent) -> Job | LogChunk | Displays | Records | SmallResult | Ended | None:
    if block.event == "end":
        return Ended(Job.model_validate_json(block.data))
    if block.event == "error":
        raise _ended(block.data)
    # Ignore unknown kinds of events, which a newer service may send.
    model = _MESSAGES.get(block.event)
    return None if model is None else model.model_validate_json(block.data)


def _ended(data: str) -> ServiceError:
    """Return why the service ended a stream early, for example a revoked token."""
    try:
        error = ErrorAnswer.model_validate_json(data).error
    except ValidationError:
        return ServiceError(f"The service ended the stream: {data}")
    return ServiceError(error.message, error.hint, error.code)


# The changes of all jobs and runs of the user.


OPENED = "opened"
_AGAIN_S = 3.0


def changes(service: JobServiceClient, over: Callable[[], bool]) -> Iterator[tuple[str, str]]:
    """Yield the name and the JSON of each event of api/events, until `over` returns True.

    OPENED comes first, and after each cut: what changed before it has to be read by other requests.
    Raises ServiceError if the service refuses.
    """
    import httpx

    while not over():
        try:
            with _opened(service, "api/events") as answer:
                yield OPENED, "{}"
                for block in _blocks(answer, over):
                    if block.event == "error":
                        raise _ended(block.data)
                    yield block.event, block.data
        except (httpx.TransportError, _StreamUnavailable):
            time.sleep(_AGAIN_S)
