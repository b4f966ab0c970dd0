"""The Kubernetes API for an event loop: documents in, documents out; errors sorted by what to do about them.

kubernetes_asyncio finds the API server, its certificate and our credentials, and renews them. Its classes of
objects are not used: to make one of each pod of a list costs more than everything that is done with it, and a
request that is plain data can be compared in a test.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import ClientError, ClientTimeout

from minicluster_hub.engines.base import EngineError

_TIMEOUT_S, _LOGS_TIMEOUT_S = 30.0, 3.0
_WATCH_S, _WATCH_SILENT_S = 30, 40.0
"""After how long the server ends a watch by itself; after how long without a byte we do. A connection that
died silently shows no news for so long."""
_FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
_LOG_BYTES = 65_536
_JSON, _APPLY = "application/json", "application/apply-patch+yaml"
_INTERRUPTED = (ClientError, OSError)
"""What ends a connection; TimeoutError is an OSError, too."""
_NO_RIGHT = re.compile(r"User \".*\" cannot ")
"""In the message of a 403 that is about our account, and not about what was sent."""
_Result = TypeVar("_Result")
Document = dict[str, Any]


class ApiError(EngineError):
    """Base of what the API answers instead of a result. message: in the server's words."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ApiUnavailable(ApiError):
    """The server does not answer, or has too much to do. That passes."""


class ApiMissing(ApiError):
    """There is no such object, or no such kind of object."""


class ApiConflict(ApiError):
    """An object of that name is there already."""


class ApiExpired(ApiError):
    """A watch cannot go on from its version: the server no longer knows what changed since then."""


class ApiRefused(ApiError):
    """The request is wrong, or not allowed."""


class ApiNotAllowed(ApiRefused):
    """Our account may not do this. A server that has just started says so until it has read all roles."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a kind, and the version from which a watch continues."""

    items: list[Document]
    version: str


class KubernetesApi:
    """One API server.

    kubeconfig: a file with its address and credentials; "": those of the pod that this process runs in.
    context: of the file. retry_s: how long a call is repeated while the server is away.
    """

    def __init__(self, kubeconfig: str = "", context: str = "", *, retry_s: float = 10.0) -> None:
        self.calls: Counter[str] = Counter()
        """How many requests were sent, by "METHOD plural"."""
        self._kubeconfig = kubeconfig
        self._context = context
        self._retry_s = retry_s
        self._client: Any = None
        self._connecting = asyncio.Lock()

    # --- objects ------------------------------------------------------------------------------

    async def get(self, path: str) -> Document:
        """Return one object. Raises ApiMissing, ApiError."""
        return await self._call("GET", path)

    async def list_all(self, path: str, labels: str = "") -> Listing:
        """Return all objects of a kind with these labels, as they are now. Raises ApiError."""
        found = await self._call("GET", path, query={"labelSelector": labels} if labels else {})
        return Listing(found.get("items") or [], str(found["metadata"]["resourceVersion"]))

    async def create(self, path: str, document: Document) -> Document:
        """Create an object. Raises ApiConflict if one of its name is there, ApiError.

        A call whose answer was lost is repeated. So who makes something of a name with our id in it takes
        ApiConflict for success.
        """
        return await self._call("POST", path, document)

    async def apply(self, path: str, document: Document, manager: str) -> Document:
        """Make an object, or give it these fields and leave its others (server-side apply)."""
        query = {"fieldManager": manager, "force": "true"}
        return await self._call("PATCH", path, document, query=query, content_type=_APPLY)

    async def replace(self, path: str, document: Document) -> Document:
        """Replace an object of the version that the document names. Raises ApiConflict, ApiError."""
        return await self._call("PUT", path, document)

    async def merge(self, path: str, part: Document) -> Document:
        """Give an object that is there these fields. Raises ApiMissing, ApiError."""
        return await self._call("PATCH", path, part, content_type="application/merge-patch+json")

    async def delete(self, path: str, grace_s: int | None = None) -> None:
        """Delete an object, in the background; one that is gone already is fine. Raises ApiError.

        grace_s: what a pod's processes get to end; 0: the object goes at once, whether its node answers or
        not.
        """
        options: Document = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        with suppress(ApiMissing):
            await self._call("DELETE", path, options)

    async def watch(self, path: str, labels: str, version: str) -> AsyncIterator[tuple[str, Document]]:
        """Yield what happens to objects after a version, as kind and object, until the server ends it.

        Raises ApiExpired, ApiError.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        query |= {"timeoutSeconds": str(_WATCH_S)} | ({"labelSelector": labels} if labels else {})
        response = await self._send("GET", path, None, query, _JSON, _WATCH_SILENT_S)
        try:
            async for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    # Mostly 410. Whatever it is, listing everything finds what was missed.
                    raise ApiExpired(str(event["object"].get("message")))
                yield event["type"], event["object"]
        except _INTERRUPTED as error:
            raise ApiUnavailable(f"a watch was interrupted: {error!r}") from error
        finally:
            response.close()

    async def last_lines(self, pod_path: str, lines: int, log: logging.Logger) -> str:
        """Return the last lines that a pod has printed; "" if they cannot be had soon."""
        query = {"tailLines": str(lines), "limitBytes": str(_LOG_BYTES)}
        try:
            async with asyncio.timeout(_LOGS_TIMEOUT_S):
                response = await self._send("GET", f"{pod_path}/log", None, query, _JSON, _LOGS_TIMEOUT_S)
                return (await _body(response)).decode(errors="replace")
        except (ApiError, TimeoutError) as error:
            log.info("the log of %s cannot be had: %s", pod_path, error)
            return ""

    async def with_retries(self, make: Callable[[], Awaitable[_Result]], log: logging.Logger) -> _Result:
        """Make something, however long the server is away: nothing can be ended without it either."""
        while True:
            try:
                return await make()
            except ApiUnavailable as error:
                log.warning("a start waits for Kubernetes: %s", error)
                await asyncio.sleep(LONGEST_PAUSE_S)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    # --- requests -----------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        path: str,
        document: Document | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = _JSON,
    ) -> Document:
        """Send a request, again while the server is away; return the answer's document. Raises ApiError."""
        until, pause_s = time.monotonic() + self._retry_s, _FIRST_PAUSE_S
        while True:
            try:
                response = await self._send(method, path, document, query or {}, content_type, _TIMEOUT_S)
                return json.loads(await _body(response))
            except (ApiUnavailable, ApiNotAllowed):
                if time.monotonic() + pause_s > until:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _send(
        self,
        method: str,
        path: str,
        document: Document | None,
        query: Mapping[str, str],
        content_type: str,
        silent_s: float,
    ) -> Any:
        """Send one request; return aiohttp's response, whose body is not read yet. Raises ApiError."""
        from kubernetes_asyncio.config import ConfigException

        client = await self._connected()
        self.calls[f"{method} {_plural(path)}"] += 1
        try:
            response = await client.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Content-Type": content_type},
                body=document,
                auth_settings=["BearerToken"],
                response_types_map={},
                _preload_content=False,
                _request_timeout=ClientTimeout(total=None, sock_connect=_TIMEOUT_S, sock_read=silent_s),
            )
        except (ConfigException, *_INTERRUPTED) as error:  # A plugin may fail to renew our credentials.
            raise ApiUnavailable(f"the Kubernetes API does not answer: {error!r}") from error
        if response.status >= 400:
            raise _error(response.status, _message(await _body(response)))
        return response

    async def _connected(self) -> Any:
        """Return the client, made at the first call: it belongs to the event loop. Raises ApiError."""
        async with self._connecting:
            if self._client is None:
                self._client = await _connect(self._kubeconfig, self._context)
            return self._client


async def _connect(kubeconfig: str, context: str) -> Any:
    from kubernetes_asyncio import client, config

    settings = client.Configuration()
    try:
        if kubeconfig:
            await config.load_kube_config(
                config_file=kubeconfig, context=context or None, client_configuration=settings
            )
        else:
            config.load_incluster_config(client_configuration=settings)
        return client.ApiClient(settings)  # reads the certificates
    except (config.ConfigException, OSError) as error:
        where = kubeconfig or "this pod's service account"
        raise ApiUnavailable(f"{where} does not say how to reach the Kubernetes API: {error}") from error


async def _body(response: Any) -> bytes:
    """Return the body of an answer. Raises ApiUnavailable."""
    try:
        return await response.read()
    except _INTERRUPTED as error:
        raise ApiUnavailable(f"an answer of the Kubernetes API was cut off: {error!r}") from error


async def _lines(response: Any) -> AsyncIterator[bytes]:
    """Yield the lines of a body as they come, of any length."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in filter(None, whole):
            yield line


def _plural(path: str) -> str:
    """Return the kind of object in a path: .../namespaces/NAME/pods/POD is about pods."""
    parts = path.strip("/").split("/")
    after = parts[2 if parts[0] == "api" else 3 :]
    if after[:1] == ["namespaces"] and len(after) > 2:
        after = after[2:]
    return after[0] if after else "version"


def _message(body: bytes) -> str:
    """Return the sentence in an answer that is a `Status`; else the beginning of the answer."""
    text = body.decode(errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]


def _error(status: int, message: str) -> ApiError:
    if status == 429 or status >= 500:
        return ApiUnavailable(message)
    if status == 401 or (status == 403 and _NO_RIGHT.search(message)):
        return ApiNotAllowed(message)
    known = {404: ApiMissing, 409: ApiConflict, 410: ApiExpired}
    return known.get(status, ApiRefused)(message)
