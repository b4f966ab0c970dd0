"""The job service's ledger, where jobs and notebook servers take their slots from: the spawner's side."""

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
    ServerPlace,
)

_AWAY = frozenset({502, 503, 504})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


class LedgerError(Exception):
    """Base: no place from the ledger. `code`: the service's short word for why."""

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.code = code


class PlaceRefused(LedgerError):
    """The ledger says no, and why."""


class LedgerAway(LedgerError):
    """The job service does not answer; it passes."""


class LedgerClient:
    """url: the job service's full address. patience_s: how long to try again while it is away.

    A place that could not be freed is freed later: it is tried again every `retry_pause_s` seconds.
    For one server, one call at a time is under way, and a place is freed by its id. So a call that reaches
    the service late cannot free the place of the next server of that name.
    """

    def __init__(
        self,
        url: str,
        token: str,
        log: logging.Logger,
        patience_s: float = 10.0,
        retry_pause_s: float = 5.0,
    ) -> None:
        import httpx

        self._url = url
        self._log = log
        self._patience_s = patience_s
        self._retry_pause_s = retry_pause_s
        self._unfreed: set[tuple[str, str]] = set()
        self._asked_for: set[tuple[str, str]] = set()
        self._is_lost: Callable[[ServerPlace], bool] | None = None
        self._turns: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._retrying: asyncio.Task[None] | None = None
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/",
            headers={"Authorization": f"token {token}", VERSION_HEADER: str(WIRE_VERSION)},
            # The service may wait some seconds for warm slots before it answers.
            timeout=httpx.Timeout(30.0, connect=5.0),
            trust_env=False,
        )

    async def place(self, owner: str, server: str, ask: PlaceServer) -> ServerPlace:
        """Return a new place for a server that does not run. Raises LedgerError."""
        async with self._turns[owner, server]:
            self._asked_for.add((owner, server))
            return await self._place(owner, server, ask)

    async def _place(self, owner: str, server: str, ask: PlaceServer) -> ServerPlace:
        if (owner, server) in self._unfreed:
            await self._delete(owner, server)
        try:
            place = await self._put(owner, server, ask)
        except PlaceRefused as refused:
            if refused.code != "place_differs":
                raise
        else:
            if not place.expired:
                return place
        # What an earlier server of that name has left behind.
        await self._delete(owner, server)
        return await self._put(owner, server, ask)

    async def free(self, owner: str, server: str) -> None:
        """Free a server's place; while the service is away, that is done later."""
        async with self._turns[owner, server]:
            try:
                await self._delete(owner, server)
            except LedgerError as error:
                self._log.warning("the place of %s/%s is given back later: %s", owner, server or "-", error)
                self._unfreed.add((owner, server))
        self._retry_soon()

    async def free_lost(self, is_lost: Callable[[ServerPlace], bool]) -> None:
        """Free the places of servers that are gone, as the hub sees it at its start.

        While the service is away, that is done later. A place that this hub has asked for is not freed.
        """
        self._is_lost = is_lost
        try:
            await self._free_lost()
        except LedgerError as error:
            self._log.warning("places of servers that are gone are given back later: %s", error)
        self._retry_soon()

    async def places(self) -> tuple[ServerPlace, ...]:
        """Return all places that notebook servers have. Raises LedgerError."""
        return ServerList.model_validate_json(await self._ask("GET", "api/servers")).servers

    async def images(self) -> dict[str, str]:
        """Return what the cluster's catalogue offers: references by name. Raises LedgerError."""
        listed = ImageList.model_validate_json(await self._ask("GET", "api/servers/images"))
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
                    await self._free_if_owed(owner, server)
                except LedgerAway as error:
                    self._log.debug("the ledger is still away: %s", error)
                    break
                except LedgerError as error:
                    # This one waits for its next turn; the others' places are free meanwhile.
                    self._log.debug("the place of %s/%s cannot be given back: %s", owner, server, error)

    async def _free_lost(self) -> None:
        if self._is_lost is None:
            return
        for place in filter(self._is_lost, await self.places()):
            async with self._turns[place.owner, place.server]:
                if (place.owner, place.server) not in self._asked_for:
                    await self._free_place(place)
        self._is_lost = None

    async def _free_if_owed(self, owner: str, server: str) -> None:
        """Free a place, unless a start in the meantime has freed it."""
        async with self._turns[owner, server]:
            if (owner, server) in self._unfreed:
                await self._delete(owner, server)

    async def _put(self, owner: str, server: str, ask: PlaceServer) -> ServerPlace:
        answer = await self._ask("PUT", _path(owner, server), content=ask.model_dump_json(exclude_none=True))
        return ServerPlace.model_validate_json(answer)

    async def _delete(self, owner: str, server: str) -> None:
        """Free the place that the server has now: if that arrives late, it is not for a newer one."""
        for place in await self.places():
            if (place.owner, place.server) == (owner, server):
                await self._free_place(place)
        self._unfreed.discard((owner, server))

    async def _free_place(self, place: ServerPlace) -> None:
        await self._ask("DELETE", f"{_path(place.owner, place.server)}?place={place.id}")

    async def _ask(self, method: str, path: str, **more: Any) -> bytes:
        """Return the body of the answer; what passes is tried again. Raises LedgerError."""
        import httpx

        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + self._patience_s, _FIRST_PAUSE_S
        while True:
            try:
                answer = await self._http.request(method, path, **more)
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__} {error}".strip()
            else:
                if answer.status_code not in _AWAY:
                    return _checked(answer)
                trouble = f"HTTP {answer.status_code}"
            if loop.time() + pause_s > until:
                raise LedgerAway(
                    f"The job service at {self._url} does not answer ({trouble})",
                    "Try again in a minute. If that does not help, its administrator should run `doctor`.",
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
        raise LedgerAway(
            f"The job service answered {answer.status_code} without saying why",
            "Whoever runs the cluster finds more in its log.",
            "strange_answer",
        ) from None
    raise PlaceRefused(_sentence(error.message), error.hint, error.code)


def _sentence(message: str) -> str:
    return (message[:1].upper() + message[1:]).removesuffix(".")
