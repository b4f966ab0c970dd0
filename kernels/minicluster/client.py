"""The one HTTP client of notebooks: what a user may ask the job service, with their own token."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from .errors import MiniclusterError
from .wire import (
    VERSION_HEADER,
    WIRE_VERSION,
    BlobInfo,
    ErrorAnswer,
    Job,
    JobList,
    JobSpec,
    JobSubmit,
    Message,
    NodeList,
)

if TYPE_CHECKING:
    import httpx

URL_NAME = "MINICLUSTER_URL"
TOKEN_NAME = "JUPYTERHUB_API_TOKEN"  # noqa: S105 - the name of a variable, not a token
_PATIENCE_S = 30.0
_AWAY = frozenset({502, 503, 504})
_BLOB_WORTH_A_QUESTION_BYTES = 64 * 1024

M = TypeVar("M", bound=Message)


class ServiceError(MiniclusterError):
    """The job service refused something, or cannot be reached.

    code: the service's short word for it ("unknown_job"); "unreachable" when there was no answer.
    """

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class Service:
    """A user's connection to the job service; methods may be called from any thread.

    url: the service's full address with its path. patience_s: how long to try again while the
    service does not answer; every request can be repeated, a submission by its key.
    """

    def __init__(self, url: str, token: str, patience_s: float = _PATIENCE_S) -> None:
        # Imported here: it takes longer than the whole extension.
        import httpx

        self.url = url.rstrip("/") + "/"
        self._patience_s = patience_s
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"token {token}", VERSION_HEADER: str(WIRE_VERSION)},
            timeout=httpx.Timeout(60.0, connect=5.0),
        )

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Service:
        """Connect as the hub told this notebook server. Raises ServiceError where there is no hub."""
        given = os.environ if environ is None else environ
        missing = [name for name in (URL_NAME, TOKEN_NAME) if not given.get(name)]
        if missing:
            raise ServiceError(
                f"This notebook does not know a cluster: {' and '.join(missing)} not set in its environment.",
                "Open it on the hub (its notebook servers have both), then run the cell again.",
                "no_cluster",
            )
        return cls(given[URL_NAME], given[TOKEN_NAME])

    def browser_path(self, path: str = "") -> str:
        """Return a link for a page of the hub, where the service has the same origin."""
        return urlsplit(self.url).path + path

    def submit(self, spec: JobSpec, key: str = "") -> Job:
        """Hand in a job; with the same key again it is the same job."""
        body = JobSubmit(idempotency_key=key or uuid.uuid4().hex, spec=spec)
        return self._message(Job, "POST", "api/jobs", content=body.model_dump_json(exclude_none=True))

    def jobs(self, limit: int = 20) -> tuple[Job, ...]:
        return self._message(JobList, "GET", "api/jobs", params={"limit": limit}).jobs

    def job(self, job_id: int) -> Job:
        return self._message(Job, "GET", f"api/jobs/{job_id}")

    def stop(self, job_id: int) -> Job:
        return self._message(Job, "POST", f"api/jobs/{job_id}/stop")

    def nodes(self) -> NodeList:
        return self._message(NodeList, "GET", "api/nodes")

    def log(self, job_id: int, rank: int, limit_bytes: int) -> tuple[str, int]:
        """Return the end of a rank's output, at most so many bytes, and the bytes left out before."""
        path = f"api/jobs/{job_id}/log"
        # The size comes as a header, so the first request asks for next to nothing.
        first = self._ask("GET", path, params={"rank": rank, "offset": 0, "limit": 1})
        start = max(0, int(first.headers["Minicluster-Size"]) - limit_bytes)
        answer = self._ask("GET", path, params={"rank": rank, "offset": start, "limit": limit_bytes})
        return answer.content.decode("utf-8", "replace"), start

    def result(self, job_id: int) -> bytes:
        return self._ask("GET", f"api/jobs/{job_id}/result").content

    def put_blob(self, data: bytes) -> BlobInfo:
        """Bring a blob to the service, unless it is a large one that it has."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = f"api/blobs/{sha256}"
        if (
            len(data) > _BLOB_WORTH_A_QUESTION_BYTES
            and self._ask("HEAD", path, passing={404}).status_code == 200
        ):
            return BlobInfo(sha256=sha256, size_bytes=len(data))
        headers = {"Content-Type": "application/octet-stream"}
        return self._message(BlobInfo, "PUT", path, content=data, headers=headers)

    def stream(self, path: str, headers: Mapping[str, str]) -> Any:
        """Open an answer that is read line by line; the service sends something each 15 s."""
        return self._http.stream("GET", path, headers=dict(headers), timeout=45.0)

    def check(self, answer: httpx.Response) -> httpx.Response:
        """Raise ServiceError for an answer that says no."""
        if answer.status_code < 400:
            return answer
        try:
            error = ErrorAnswer.model_validate_json(answer.content).error
        except ValidationError:
            raise _strange(answer) from None
        raise ServiceError(error.message, error.hint, error.code)

    def close(self) -> None:
        self._http.close()

    def _message(self, model: type[M], method: str, path: str, **more: Any) -> M:
        return model.model_validate_json(self._ask(method, path, **more).content)

    def _ask(
        self, method: str, path: str, passing: frozenset[int] | set[int] = frozenset(), **more: Any
    ) -> httpx.Response:
        import httpx

        until = time.monotonic() + self._patience_s
        for delay_s in _delays_s():
            try:
                answer = self._http.request(method, path, **more)
            except httpx.TransportError as error:
                trouble: httpx.TransportError | None = error
            else:
                if answer.status_code in passing:
                    return answer
                if answer.status_code not in _AWAY:
                    return self.check(answer)
                trouble = None
            if time.monotonic() + delay_s > until:
                raise self._unreachable(trouble)
            time.sleep(delay_s)
        raise AssertionError("the delays never end")

    def _unreachable(self, trouble: Exception | None) -> ServiceError:
        why = f"{type(trouble).__name__}: {trouble}" if trouble else "the proxy says that it is not running"
        return ServiceError(
            f"The job service at {self.url} does not answer ({why}).",
            "Jobs go on without the notebook. Try again in a moment, then ask the hub's admin.",
            "unreachable",
        )


def _delays_s() -> Any:
    """Yield waiting times for ever: short ones first."""
    delay_s = 0.1
    while True:
        yield delay_s
        delay_s = min(2.0, delay_s * 2)


def _strange(answer: httpx.Response) -> ServiceError:
    if answer.status_code in (401, 403):
        return ServiceError(
            f"The job service does not accept this notebook's token (HTTP {answer.status_code}).",
            "Restart the notebook server from the hub's control panel, it gets a new token.",
            "forbidden",
        )
    return ServiceError(
        f"{answer.request.url} answered {answer.status_code} without saying why.",
        "Is this the address of the job service? See MINICLUSTER_URL.",
    )
