"""The one HTTP client of notebooks: what a user may ask the job service, with their own token."""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
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
    JobWhy,
    Message,
    NodeList,
    Snapshot,
    SnapshotList,
)

if TYPE_CHECKING:
    import httpx

URL_NAME = "MINICLUSTER_URL"
TOKEN_NAME = "JUPYTERHUB_API_TOKEN"  # noqa: S105 - the name of a variable, not a token
_PATIENCE_S = 30.0
_AWAY = frozenset({502, 503, 504})
_BLOB_WORTH_A_QUESTION_BYTES = 64 * 1024
_PIECE_BYTES = 1 << 20

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

    def why(self, job_id: int) -> JobWhy:
        """Return why a job does not get on; of a running one its ranks are asked now."""
        return self._message(JobWhy, "GET", f"api/jobs/{job_id}/why")

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

    def snapshots(self, job_id: int) -> tuple[Snapshot, ...]:
        return self._message(SnapshotList, "GET", f"api/jobs/{job_id}/snapshots").snapshots

    def bring_result(self, job_id: int, file: BinaryIO) -> None:
        """Write a job's result into an empty file. Raises OSError when that does not take it."""
        path = f"api/jobs/{job_id}/result"

        def bring() -> httpx.Response:
            with self._http.stream("GET", path) as answer:
                if answer.status_code != 200:
                    answer.read()
                    return answer
                if file.tell():  # What came before a connection was cut.
                    file.seek(0)
                    file.truncate()
                for piece in answer.iter_bytes(_PIECE_BYTES):
                    file.write(piece)
                file.flush()
                return answer

        self._patiently(bring)

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
        raise self._said(answer) or _strange(answer)

    def close(self) -> None:
        self._http.close()

    def _message(self, model: type[M], method: str, path: str, **more: Any) -> M:
        return model.model_validate_json(self._ask(method, path, **more).content)

    def _ask(
        self, method: str, path: str, passing: frozenset[int] | set[int] = frozenset(), **more: Any
    ) -> httpx.Response:
        return self._patiently(lambda: self._http.request(method, path, **more), passing)

    def _patiently(
        self, call: Callable[[], httpx.Response], passing: frozenset[int] | set[int] = frozenset()
    ) -> httpx.Response:
        """Repeat a call while nobody is there to answer it."""
        import httpx

        until = time.monotonic() + self._patience_s
        for delay_s in _delays_s():
            try:
                answer = call()
            except httpx.TransportError as error:
                trouble: Exception | None = error
            else:
                if answer.status_code in passing:
                    return answer
                if not self.is_away(answer):
                    return self.check(answer)
                trouble = self._said(answer)
            if time.monotonic() + delay_s > until:
                raise trouble if isinstance(trouble, ServiceError) else self._unreachable(trouble)
            time.sleep(delay_s)
        raise AssertionError("the delays never end")

    def is_away(self, answer: httpx.Response) -> bool:
        """Whether a proxy answered in place of the service, which may be there again in a moment."""
        unrouted = answer.status_code == 404 and self._said(answer) is None
        return unrouted or answer.status_code in _AWAY

    def _said(self, answer: httpx.Response) -> ServiceError | None:
        """Return what the service itself says is wrong, None when only its proxy spoke."""
        try:
            error = ErrorAnswer.model_validate_json(answer.content).error
        except ValidationError:
            return None
        return ServiceError(error.message, error.hint, error.code)

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
