"""The spawner's client of the job service, which places notebook servers on nodes and slots."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from minicluster.wire import (
    VERSION_HEADER,
    WIRE_VERSION,
    ErrorAnswer,
    ImageList,
    PlaceServer,
    ServerList,
    ServerPlacement,
)

_RETRYABLE_STATUSES = frozenset({502, 503, 504})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


class LedgerError(Exception):
    """Base of errors: the job service gave no placement. code: the service's error code."""

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.code = code


class PlaceRefused(LedgerError):
    """The job service refuses the placement; the message says why."""


class LedgerUnavailable(LedgerError):
    """The job service does not answer now."""


class LedgerClient:
    """url: the job service's full URL. retry_for_s: how long to retry while it does not answer.

    If a placement cannot be freed, the client tries again every `retry_pause_s` seconds. Calls for one server
    run one after the other, and a placement is freed by its id. So a late call cannot free the placement of
    the next server with that name.
    """

    def __init__(
        self,
        url: str,
        token: str,
        log: logging.Logger,
        retry_for_s: float = 10.0,
        retry_pause_s: float = 5.0,
    ) -> None:
        import httpx

        self._url = url
        self._log = log
        self._retry_for_s = retry_for_s
        self._retry_pause_s = retry_pause_s
        self._unfreed: set[tuple[str, str]] = set()
        self._requested: set[tuple[str, str]] = set()
        self._is_lost: Callable[[ServerPlacement], bool] | None = None
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._retrying: asyncio.Task[None] | None = None
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/",
            headers={"Authorization": f"token {token}", VERSION_HEADER: str(WIRE_VERSION)},
            # The service may wait some seconds for warm slots before it answers.
            timeout=httpx.Timeout(30.0, connect=5.0),
            trust_env=False,
        )

    async def place(self, owner: str, server: str, request: PlaceServer) -> ServerPlacement:
        """Return a new placement for a server that is not running. Raises LedgerError."""
        async with self._locks[owner, server]:
            self._requested.add((owner, server))
            return await self._place(owner, server, request)

    async def _place(self, owner: str, server: str, request: PlaceServer) -> ServerPlacement:
        if (owner, server) in self._unfreed:
            await self._delete(owner, server)
        try:
            place = await self._put(owner, server, request)
        except PlaceRefused as refused:
            if refused.code != "place_differs":
                raise
        else:
            if not place.expired:
                return place
        # The placement belongs to an earlier server with that name.
        await self._delete(owner, server)
        return await self._put(owner, server, request)

    async def free(self, owner: str, server: str) -> None:
        """Free a server's placement; retry later if the service does not answer."""
        async with self._locks[owner, server]:
            try:
                await self._delete(owner, server)
            except LedgerError as error:
                self._log.warning("the slots of %s/%s are freed later: %s", owner, server or "-", error)
                self._unfreed.add((owner, server))
        self._retry_soon()

    async def free_lost(self, is_lost: Callable[[ServerPlacement], bool]) -> None:
        """Free the placements of servers that the hub does not have at its start.

        Retry later if the service does not answer. Placements that this hub has requested stay.
        """
        self._is_lost = is_lost
        try:
            await self._free_lost()
        except LedgerError as error:
            self._log.warning("placements of servers that ended are freed later: %s", error)
        self._retry_soon()

    async def places(self) -> tuple[ServerPlacement, ...]:
        """Return the placements of all notebook servers. Raises LedgerError."""
        return ServerList.model_validate_json(await self._request("GET", "api/servers")).servers

    async def images(self) -> dict[str, str]:
        """Return the images of the cluster's catalogue: references by name. Raises LedgerError."""
        listed = ImageList.model_validate_json(await self._request("GET", "api/servers/images"))
        return {image.name: image.reference for image in listed.images}

    async def close(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)
        await self._http.aclose()

    def _retry_soon(self) -> None:
        has_work = self._unfreed or self._is_lost is not None
        if has_work and (self._retrying is None or self._retrying.done()):
            self._retrying = asyncio.create_task(self._retry())

    async def _retry(self) -> None:
        while self._unfreed or self._is_lost is not None:
            await asyncio.sleep(self._retry_pause_s)
            with suppress(LedgerError):
                await self._free_lost()
            for owner, server in tuple(self._unfreed):
                try:
                    await self._free_if_still_placed(owner, server)
                except LedgerUnavailable as error:
                    self._log.debug("the job service still does not answer: %s", error)
                    break
                except LedgerError as error:
                    # Retried later; the other placements need not wait for it.
                    self._log.debug("the slots of %s/%s cannot be freed: %s", owner, server, error)

    async def _free_lost(self) -> None:
        if self._is_lost is None:
            return
        for place in filter(self._is_lost, await self.places()):
            async with self._locks[place.owner, place.server]:
                if (place.owner, place.server) not in self._requested:
                    await self._free_place(place)
        self._is_lost = None

    async def _free_if_still_placed(self, owner: str, server: str) -> None:
        """Free a placement, unless a start freed it meanwhile."""
        async with self._locks[owner, server]:
            if (owner, server) in self._unfreed:
                await self._delete(owner, server)

    async def _put(self, owner: str, server: str, request: PlaceServer) -> ServerPlacement:
        answer = await self._request(
            "PUT", _path(owner, server), content=request.model_dump_json(exclude_none=True)
        )
        return ServerPlacement.model_validate_json(answer)

    async def _delete(self, owner: str, server: str) -> None:
        """Free the server's present placement by its id, so that a late call does not free a newer one."""
        for place in await self.places():
            if (place.owner, place.server) == (owner, server):
                await self._free_place(place)
        self._unfreed.discard((owner, server))

    async def _free_place(self, place: ServerPlacement) -> None:
        await self._request("DELETE", f"{_path(place.owner, place.server)}?place={place.id}")

    async def _request(self, method: str, path: str, **more: Any) -> bytes:
        """Return the body of the answer; retry while the service does not answer. Raises LedgerError."""
        import httpx

        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + self._retry_for_s, _FIRST_PAUSE_S
        while True:
            try:
                answer = await self._http.request(method, path, **more)
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__} {error}".strip()
            else:
                if answer.status_code not in _RETRYABLE_STATUSES:
                    return _checked(answer)
                trouble = f"HTTP {answer.status_code}"
            if loop.time() + pause_s > until:
                raise LedgerUnavailable(
                    f"The job service at {self._url} does not answer ({trouble})",
                    "Try again in a minute. If that does not help, an admin should run `doctor`.",
                    "unreachable",
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _path(owner: str, server: str) -> str:
    return f"api/servers/{quote(owner, safe='')}/{quote(server, safe='') or '-'}"


def _checked(answer: Any) -> bytes:
    if answer.status_code < 400:
        return answer.content
    try:
        error = ErrorAnswer.model_validate_json(answer.content).error
    except ValidationError:
        raise LedgerUnavailable(
            f"The job service answered {answer.status_code} without a reason",
            "An admin finds the reason in its log.",
            "strange_answer",
        ) from None
    raise PlaceRefused(_sentence(error.message), error.hint, error.code)


def _sentence(message: str) -> str:
    return (message[:1].upper() + message[1:]).removesuffix(".")
