"""The base of all handlers: authorization, wire version, limits on bodies, errors, headers."""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError
from tornado.web import HTTPError, RequestHandler, stream_request_body

from minicluster.wire import VERSION_HEADER, WIRE_VERSION, parse_strict
from minicluster_hub.storage.quotas import OverQuota
from minicluster_hub.support.disk_errors import NotKept
from minicluster_hub.support.rates import Rate
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import (
    REFUSALS,
    ApiError,
    answer,
    api_error,
    invalid_body,
    too_large,
    too_many,
)
from minicluster_hub.web.route import OnFollower, Query, Route, Who

M = TypeVar("M", bound=BaseModel)
_WHOLE_NUMBER = re.compile(r"[0-9]{1,16}")


@stream_request_body
class ServiceHandler(RequestHandler, ABC):
    """Base of all handlers. Bodies are streamed, so that a handler can refuse a request before its body."""

    who: ClassVar[Who] = Who.ANYONE
    on_follower: ClassVar[OnFollower] = OnFollower.PROXY
    context: Context
    routes: Mapping[str, Route]

    def initialize(self, context: Context, routes: Mapping[str, Route]) -> None:
        self.context = context
        self.routes = routes
        self.refused = False
        self._payer: tuple[Hashable, Rate] | None = None
        self._body = bytearray()
        self._began = time.monotonic()

    # --- before the method --------------------------------------------------------------------

    async def prepare(self) -> None:
        try:
            await self._admit()
        except ApiError as error:
            self.refuse(error)

    async def _admit(self) -> None:
        """Raise ApiError if the request is refused."""
        # PostgreSQL refuses a NUL with an error like that of a lost connection.
        if "%00" in (self.request.uri or ""):
            raise ApiError(422, "invalid", "the address contains a NUL character, which names cannot have")
        if self.route is None:
            message = f"this path has no {self.request.method}; it has: {', '.join(self.routes)}"
            raise ApiError(405, "method_not_allowed", message)
        self.check_version()
        await self.identify()
        if not self._finished:
            self._check_length()

    def refuse(self, error: ApiError) -> None:
        """Discard the body, and answer with an error after its end.

        An earlier answer would close the connection while the client still sends, and the client would see a
        connection reset instead of the answer.
        """
        self._body.clear()
        self.refused = True

        def answer_with_error(**_path: str) -> None:
            raise error

        setattr(self, (self.request.method or "").lower(), answer_with_error)

    @abstractmethod
    async def identify(self) -> None:
        """Authenticate the caller. Raises ApiError if the caller may not do this."""

    async def slow_down(self, who: Hashable, rate: Rate) -> None:
        """Count a request of a caller. Raises ApiError (429) after a pause, since refusals cost work, too."""
        self._payer = who, rate
        wait_s = self.context.buckets.take(who, rate)
        if wait_s:
            await asyncio.sleep(self.context.limits.refusal_s)
            raise _too_many(rate, wait_s)

    @property
    def route(self) -> Route | None:
        """The request's route; None if the path has none for its method."""
        return self.routes.get(self.request.method or "")

    @property
    def declared(self) -> Route:
        """The route of an admitted request."""
        return self.routes[self.request.method or ""]

    def check_version(self) -> None:
        """Refuse a client of another wire version. Browsers send no version."""
        version = self.request.headers.get(VERSION_HEADER)
        if version is not None and version != str(WIRE_VERSION):
            raise ApiError(
                426,
                "wire_version",
                f"this job service speaks version {WIRE_VERSION} of the messages, you sent {version!r}",
                "install the release of minicluster that the hub has",
            )

    # --- bodies -------------------------------------------------------------------------------

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.request_bytes

    @property
    def body_name(self) -> str:
        return "the request"

    def _check_length(self) -> None:
        length = self.request.headers.get("Content-Length", "0")
        if length.isdigit() and int(length) > self.body_limit_bytes:
            raise too_large(self.body_name, self.body_limit_bytes)

    async def data_received(self, chunk: bytes) -> None:
        """Collect the body. Its bytes are counted here, too: a chunked body has no Content-Length."""
        if self.refused:
            return
        if len(self._body) + len(chunk) > self.body_limit_bytes:
            self.refuse(too_large(self.body_name, self.body_limit_bytes))
            return
        self._body += chunk

    def parse(self, model: type[M]) -> M:
        """Return the body as a message. Raises ApiError (422, 429)."""
        self._check_debt()
        cost_bytes = len(self._body)
        try:
            message = parse_strict(model, bytes(self._body))
            cost_bytes -= self.carried_bytes(message)
            return message
        except ValidationError as error:
            raise invalid_body(error) from error
        finally:
            self._charge(cost_bytes // self.body_unit_bytes)

    def _check_debt(self) -> None:
        """Refuse a long body if the caller is over the rate by now: many may have been admitted at once."""
        if self._payer is None or len(self._body) < self.body_unit_bytes:
            return
        if wait_s := self.context.buckets.take(*self._payer):
            raise _too_many(self._payer[1], wait_s)

    @property
    def body_unit_bytes(self) -> int:
        """This many bytes of a JSON body count as one more request."""
        return self.context.limits.body_bytes

    def carried_bytes(self, message: BaseModel) -> int:
        """Return how many bytes of a body do not count, since parsing them costs almost nothing."""
        return 0

    def _charge(self, requests: int) -> None:
        """Count more requests of the caller."""
        if self._payer is not None:
            self.context.buckets.charge(*self._payer, requests)

    def query_int(self, name: str, default: int = 0) -> int:
        """Return a whole number from the URL's query, as the route declares it. Raises ApiError (422).

        default: used if the route declares none.
        """
        query = next(one for one in self.declared.query if one.name == name)
        text = self.get_query_argument(name, None)
        if text is None:
            return default if query.default is None else query.default
        return whole_number(query, text)

    # --- answers ------------------------------------------------------------------------------

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
        self.set_header("X-Frame-Options", "DENY")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header(VERSION_HEADER, str(WIRE_VERSION))

    def reply(self, message: BaseModel, status: int = 200) -> None:
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        text = message.model_dump_json()
        self._charge(len(text) // self.context.limits.answer_bytes)
        self.finish(text)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = api_error(kwargs.get("exc_info", (None, None, None))[1], status_code)
        self.set_status(error.status)
        self.set_header("Content-Type", "application/json")
        if error.retry_after_s is not None:
            self.set_header("Retry-After", str(error.retry_after_s))
        self.finish(answer(error))

    def _handle_request_exception(self, e: BaseException) -> None:
        """Give tornado the status of our own errors; it knows only HTTPError."""
        if isinstance(e, (OverQuota, NotKept, *REFUSALS)):
            e = api_error(e, 503)
        if isinstance(e, ApiError) and not self._finished and not self._headers_written:
            self.send_error(e.status, exc_info=(type(e), e, None))
            return
        super()._handle_request_exception(e)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, ApiError | HTTPError):
            where = f"{self.request.method} {self.request.path}"
            self.context.log.error("%s failed", where, exc_info=(typ, value, tb))

    def finish(self, chunk: Any = None) -> Any:
        """End the answer. If the body is incomplete, announce that the connection closes.

        The proxy reuses connections for other users: it would send another user's request on a closing one.
        """
        if not self.request._body_future.done() and not self._headers_written:
            self.set_header("Connection", "close")
        return super().finish(chunk)

    def on_finish(self) -> None:
        route = self.route
        self.context.metrics.request_done(
            self.request.method or "",
            route.path if route else "other",
            self.get_status(),
            time.monotonic() - self._began,
        )


def whole_number(query: Query, text: str) -> int:
    """Return the number in a text of a URL's query. Raises ApiError (422)."""
    if not (_WHOLE_NUMBER.fullmatch(text) and query.low <= int(text) <= query.high):
        wanted = f"a whole number from {query.low} to {query.high}"
        raise ApiError(422, "invalid", f"{query.name}={text[:40]!r}: want {wanted}")
    return int(text)


def _too_many(rate: Rate, wait_s: float) -> ApiError:
    message = f"you sent more than {rate.per_s:g} requests per second"
    return too_many("too_many_requests", message, "wait as long as Retry-After says", wait_s)


class OpenHandler(ServiceHandler):
    """Base of handlers whose answers are public."""

    async def identify(self) -> None:
        return None


class NotFoundHandler(ServiceHandler):
    """Any other path."""

    async def prepare(self) -> None:
        await self.identify()

    async def identify(self) -> None:
        raise ApiError(
            404,
            "unknown_path",
            f"there is nothing at {self.request.path}",
            "api/openapi.json lists the paths",
        )
