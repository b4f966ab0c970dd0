"""A notebook's connection to the job service: its token, retries, and errors for refused requests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urljoin, urlsplit

from pydantic import ValidationError

from minicluster.errors import MiniclusterError
from minicluster.wire import VERSION_HEADER, WIRE_VERSION, ErrorAnswer, Message

if TYPE_CHECKING:
    import ssl

    import httpx

URL_NAME = "MINICLUSTER_URL"
PAGES_NAME = "MINICLUSTER_PAGES"
"""The variable with the service's address for browsers, if it differs from the address for notebooks."""
USER_NAME = "JUPYTERHUB_USER"
_HUB_NAME = "JUPYTERHUB_PUBLIC_HUB_URL"
RETRY_FOR_S = 60.0
"""Swarm may take half of it to start the job service on another node."""
_RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})
_PIECE_BYTES = 1 << 20

PERMISSIONS = (
    "access:services!service=minicluster custom:minicluster:submit!user custom:minicluster:read!user"
)
"""Scopes of the token for a notebook outside of the hub, in the format of the hub's token page."""

M = TypeVar("M", bound=Message)


class ServiceError(MiniclusterError):
    """The job service refused a request, or cannot be reached.

    code: the service's error code ("unknown_job"); "unreachable" if there was no answer.
    retryable: the same request may succeed shortly.
    """

    def __init__(self, message: str, hint: str = "", code: str = "", retryable: bool = False) -> None:
        super().__init__(message, hint)
        self.code = code
        self.retryable = retryable


@dataclass(frozen=True)
class ExternalAccess:
    """Access for a notebook outside of the hub, by a token that the user created.

    token_page: the hub's page for tokens. tls: the certificates to trust; None: the usual authorities.
    """

    token_page: str
    tls: ssl.SSLContext | None = None

    def refused(self, error: ServiceError | None) -> ServiceError:
        """Return the error for a token that the service refused."""
        hint = (
            f"Make a new one at {self.token_page} with the permissions\n{PERMISSIONS}\n"
            "then: %distribute connect"
        )
        if error is not None and error.code == "scope_missing":
            return ServiceError(f"This token may not do that: {error.message}.", hint, error.code)
        message = "The hub does not know this token: it expired, it was revoked, or a part of it is missing."
        return ServiceError(message, hint, "not_authenticated")


def own_pages(url: str) -> str:
    """Return the service's address for browsers, for this server's hub: a path or a full URL.

    url: the service's address for this server.
    """
    return os.environ.get(PAGES_NAME) or urlsplit(url).path


class Connection:
    """A user's connection to the job service; any thread may call its methods.

    url: the service's full address with its path. retry_for_s: how long to retry a request while the
    service does not answer. outside: None in a notebook server of the hub.
    """

    def __init__(
        self, url: str, token: str, retry_for_s: float = RETRY_FOR_S, outside: ExternalAccess | None = None
    ) -> None:
        # Imported here, since this import takes longer than loading the whole extension.
        import httpx

        self.url = url.rstrip("/") + "/"
        self.outside = outside
        self.token = token
        self.user = os.environ.get(USER_NAME, "") if outside is None else ""
        self._retry_for_s = retry_for_s
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"token {token}", VERSION_HEADER: str(WIRE_VERSION)},
            timeout=httpx.Timeout(60.0, connect=5.0),
            verify=(outside and outside.tls) or True,
        )

    def browser_path(self, path: str = "") -> str:
        """Return a link for the notebook's page: on a hub usually a path on the same origin."""
        return (self.url if self.outside else own_pages(self.url)) + path

    def link(self, path: str = "") -> str:
        """Return a full URL for a browser; self.url may be reachable for servers only."""
        hub = "" if self.outside else os.environ.get(_HUB_NAME, "")
        return urljoin(hub or self.url, self.browser_path(path))

    def ask(
        self,
        method: str,
        path: str,
        passing: frozenset[int] | set[int] = frozenset(),
        retry_for_s: float | None = None,
        **more: Any,
    ) -> httpx.Response:
        """Send a request; return the answer. passing: statuses that are no errors. Raises ServiceError.

        retry_for_s: another time than the connection's.
        """
        return self._with_retries(lambda: self._http.request(method, path, **more), passing, retry_for_s)

    def download(self, path: str, file: BinaryIO, sha256: str = "") -> None:
        """Write a download into a file. Raises OSError if writing fails.

        sha256: continue at the file's end if the service still has this content.
        """

        def request() -> httpx.Response:
            start = file.tell() if sha256 else 0
            headers = {"Range": f"bytes={start}-", "If-Range": f'"{sha256}"'} if start else {}
            with self._http.stream("GET", path, headers=headers) as answer:
                if answer.status_code not in (200, 206):
                    answer.read()
                    return answer
                if answer.status_code == 200 and file.tell():  # All bytes come again.
                    file.seek(0)
                    file.truncate()
                for piece in answer.iter_bytes(_PIECE_BYTES):
                    file.write(piece)
                file.flush()
                return answer

        self._with_retries(request)

    def stream(self, path: str, headers: Mapping[str, str]) -> Any:
        """Open a streamed answer, read line by line; the service sends something at least every 15 s."""
        return self._http.stream("GET", path, headers=dict(headers), timeout=45.0)

    def check(self, answer: httpx.Response) -> httpx.Response:
        """Raise ServiceError if the answer is an error."""
        if answer.status_code < 400:
            return answer
        error = _service_error(answer)
        if self.outside and answer.status_code in (401, 403):
            raise self.outside.refused(error)
        raise error or _unexplained(answer)

    def close(self) -> None:
        self._http.close()

    def _message(self, model: type[M], method: str, path: str, **more: Any) -> M:
        return model.model_validate_json(self.ask(method, path, **more).content)

    def _with_retries(
        self,
        call: Callable[[], httpx.Response],
        passing: frozenset[int] | set[int] = frozenset(),
        retry_for_s: float | None = None,
    ) -> httpx.Response:
        """Retry a call until the service answers, for at most `retry_for_s`."""
        import httpx

        until = time.monotonic() + (self._retry_for_s if retry_for_s is None else retry_for_s)
        for attempt in count():
            delay_s = min(2.0, 0.1 * 2**attempt)
            try:
                answer = call()
            except httpx.TransportError as error:
                trouble: Exception | None = error
            else:
                if answer.status_code in passing:
                    return answer
                if not self.is_retryable(answer):
                    return self.check(answer)
                trouble = _service_error(answer)
                delay_s = max(delay_s, retry_after_s(answer))
            if time.monotonic() + delay_s > until:
                raise trouble if isinstance(trouble, ServiceError) else self._unreachable(trouble)
            time.sleep(delay_s)
        raise AssertionError("the delays never end")

    def is_retryable(self, answer: httpx.Response) -> bool:
        """Whether the same request may succeed shortly: only a proxy answered, or the service is too busy."""
        unrouted = answer.status_code == 404 and _service_error(answer) is None
        return unrouted or answer.status_code in _RETRYABLE_STATUSES

    def retry_reason(self, answer: httpx.Response) -> str:
        error = _service_error(answer)
        return error.message if error else f"the service answered {answer.status_code}"

    def _unreachable(self, trouble: Exception | None) -> ServiceError:
        why = f"{type(trouble).__name__}: {trouble}" if trouble else "the proxy says that it is not running"
        return ServiceError(
            f"The job service at {self.url} does not answer ({why}).",
            "Jobs continue without the notebook. Try again in a moment, then ask the hub's admin.",
            "unreachable",
            retryable=True,
        )


def _service_error(answer: httpx.Response) -> ServiceError | None:
    """Return the service's error; None if only its proxy answered."""
    try:
        error = ErrorAnswer.model_validate_json(answer.content).error
    except ValidationError:
        return None
    return ServiceError(error.message, error.hint, error.code, answer.status_code in _RETRYABLE_STATUSES)


def retry_after_s(answer: httpx.Response) -> float:
    """Return the waiting time in seconds that the service asks for."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() and len(text) < 4 else 0.0


def _unexplained(answer: httpx.Response) -> ServiceError:
    if answer.status_code in (401, 403):
        return ServiceError(
            f"The job service does not accept this notebook's token (HTTP {answer.status_code}).",
            "Restart the notebook server from the hub's control panel, it gets a new token.",
            "forbidden",
        )
    return ServiceError(
        f"{answer.request.url} answered {answer.status_code} without a reason.",
        "Is this the address of the job service? See MINICLUSTER_URL.",
    )
