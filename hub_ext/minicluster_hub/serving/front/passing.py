"""Passes a request on to a replica, where HAProxy does not: repeated at another one if the first is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest, HTTPResponse
from tornado.simple_httpclient import HTTPTimeoutError, SimpleAsyncHTTPClient

from minicluster_hub.serving.front.front import ModelFront
from minicluster_hub.serving.routing import SECRET_HEADER, Endpoint, ModelRoute

_CONNECT_S = 2.0
_AT_ONCE = 1000
_MOST_BYTES = 64 << 20
"""Of an answer: it is held in memory as a whole."""
_TRIES = 4
_GONE = 503
"""Of a replica that takes no more requests."""
_PASSED_ON = ("Content-Type", "Inference-Header-Content-Length", "Accept")
_DATA = ("application/json", "application/octet-stream")
_KEPT = ("Inference-Header-Content-Length", "Retry-After")


class NoReplica(Exception):
    """No replica answers now."""


class TooSlow(Exception):
    """The model took longer than its requests may take."""


@dataclass(frozen=True)
class Answer:
    """A replica's answer, as data: its content type is one that no browser runs."""

    status: int
    content_type: str
    headers: Mapping[str, str]
    body: bytes


class Passing:
    """Sends requests to replicas, each on a connection of its own."""

    def __init__(self, front: ModelFront) -> None:
        self._front = front
        self._client: AsyncHTTPClient | None = None

    async def ask(
        self, route: ModelRoute, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Return the answer of a replica. Raises NoReplica, TooSlow."""
        tried: set[Endpoint] = set()
        while len(tried) < _TRIES:
            endpoint = self._front.choose(route, frozenset(tried))
            if endpoint is None:
                break
            tried.add(endpoint)
            self._front.begin(endpoint)
            try:
                found = await self._ask_one(route, endpoint, method, path, headers, body)
            finally:
                self._front.end(endpoint)
            if found is not None and found.code != _GONE:
                return _answer(found)
        raise NoReplica(f"no replica of {route.name} answers now")

    async def _ask_one(
        self,
        route: ModelRoute,
        endpoint: Endpoint,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> HTTPResponse | None:
        """Return a replica's answer; None if it is gone. Raises TooSlow."""
        if self._client is None:
            self._client = SimpleAsyncHTTPClient(
                force_instance=True, max_clients=_AT_ONCE, max_body_size=_MOST_BYTES
            )
        host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
        passed = {name: headers[name] for name in _PASSED_ON if name in headers}
        request = HTTPRequest(
            f"http://{host}:{endpoint.port}/{quote(path)}",
            method,
            headers={**passed, SECRET_HEADER: route.secret},
            body=body if method == "POST" else None,
            connect_timeout=_CONNECT_S,
            request_timeout=route.options.timeout_s,
            follow_redirects=False,
            decompress_response=False,
        )
        try:
            return await self._client.fetch(request, raise_error=False)
        except HTTPClientError as error:
            # Other timeouts are of the connection: the replica is gone.
            if isinstance(error, HTTPTimeoutError) and "during request" in str(error):
                raise TooSlow(f"{route.name} took longer than {route.options.timeout_s:g} s") from error
            return None
        except OSError:
            return None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _answer(found: HTTPResponse) -> Answer:
    given = found.headers.get("Content-Type", "")
    kind = given if given.partition(";")[0].strip().lower() in _DATA else "application/octet-stream"
    kept = {name: found.headers[name] for name in _KEPT if name in found.headers}
    return Answer(found.code, kind, kept, found.body or b"")
