"""The front of one job service: which models there are, who may ask them, and what leads the requests there.

HAProxy takes the users' port once the first model is served; the job service then listens behind it. A
request of a token that HAProxy does not know goes to the job service. That asks the hub, passes the request
on itself, and lets HAProxy take the token's next requests for some seconds. Without HAProxy it passes on all
of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from minicluster_hub.serving.front.figures import Figures
from minicluster_hub.serving.front.haproxy import FrontBroken, HaProxy, installed
from minicluster_hub.serving.routing import Endpoint, ModelRoute, model_key

ALLOWED_S = 15.0
"""How long HAProxy takes a token without a question. The hub's own answer is cached for 45 s."""
_STARTS = 3
_MANY_ALLOWED = 10_000


class Door(Protocol):
    """The users' port of the job service."""

    @property
    def sockets(self) -> list[socket.socket]:
        """The sockets that listen there."""
        ...

    def go_behind(self, path: Path) -> None:
        """Listen at a socket of the file system in place of the port, which a front has from now on."""
        ...

    def come_back(self) -> None:
        """Listen at the port again: the front is gone."""
        ...


class ModelFront:
    """Leads requests to replicas. how: as `MiniclusterHub.model_front`. door: None: nothing may take the
    port.
    """

    def __init__(self, prefix: str, how: str, clock: Callable[[], float], log: logging.Logger) -> None:
        self.figures = Figures(clock)
        self.door: Door | None = None
        self._prefix = prefix
        self._how = how
        self._clock = clock
        self._log = log
        self._routes: dict[int, ModelRoute] = {}
        self._by_key: dict[str, ModelRoute] = {}
        self._open: dict[Endpoint, int] = {}
        self._haproxy: HaProxy | None = None
        self._starts = 0
        self._allowed: dict[str, asyncio.TimerHandle] = {}
        self._lock = asyncio.Lock()
        self._restarting: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        if self._haproxy is not None:
            return "HAProxy"
        if installed():
            return "the job service itself"
        return "the job service itself, which is slower: HAProxy is not installed"

    # What the manager tells.

    async def lead(self, route: ModelRoute) -> None:
        """Lead a model's requests to these replicas from now on."""
        resolved = await _resolved(route)
        before = self._routes.get(route.model_id)
        self._routes[route.model_id] = self._by_key[route.key] = resolved
        async with self._lock:
            if before is not None and (before.shared, before.is_open) != (route.shared, route.is_open):
                await self._forget_allowed(route.key)
            if resolved.endpoints and self._haproxy is None:
                await self._start()
            await self._tell(resolved)

    async def drop(self, model_id: int) -> None:
        """Lead no more requests to a model."""
        route = self._routes.pop(model_id, None)
        if route is None:
            return
        async with self._lock:
            # Another model may have the name by now.
            if self._by_key.get(route.key, route).model_id == model_id:
                self._by_key.pop(route.key, None)
                await self._forget_allowed(route.key)
            if self._haproxy is not None:
                try:
                    await self._haproxy.drop(model_id, route.key)
                except FrontBroken as broken:
                    self._log.warning("%s", broken)

    # What handlers ask.

    def route(self, owner: str, name: str) -> ModelRoute | None:
        """Return a model that is served."""
        return self._by_key.get(model_key(owner, name))

    def choose(self, route: ModelRoute, but: frozenset[Endpoint] = frozenset()) -> Endpoint | None:
        """Return the replica with the fewest requests of this service, but for some; None: there is none."""
        now = self._by_key.get(route.key, route).endpoints
        return min(
            (one for one in now if one not in but), key=lambda one: self._open.get(one, 0), default=None
        )

    def begin(self, endpoint: Endpoint) -> None:
        self._open[endpoint] = self._open.get(endpoint, 0) + 1

    def end(self, endpoint: Endpoint) -> None:
        left = self._open.pop(endpoint, 1) - 1
        if left > 0:
            self._open[endpoint] = left

    def allow(self, authorization: str, route: ModelRoute) -> None:
        """Let HAProxy take the next requests with this header for some seconds."""
        if self._haproxy is None or len(self._allowed) >= _MANY_ALLOWED:
            return
        who = f"{hashlib.sha256(authorization.encode()).hexdigest().upper()}:{route.key}"
        if who not in self._allowed:
            loop = asyncio.get_running_loop()
            self._allowed[who] = loop.call_later(ALLOWED_S, self._expire, who)
            loop.create_task(self._tell_allowed(who))  # noqa: RUF006 - it ends at once

    async def close(self) -> None:
        for timer in self._allowed.values():
            timer.cancel()
        if self._restarting is not None:
            self._restarting.cancel()
        if self._haproxy is not None:
            await self._haproxy.end()
            self._haproxy = None

    # HAProxy.

    async def _start(self) -> None:
        """Start HAProxy on the users' port, if it shall and can be there."""
        if self.door is None or self._how == "service" or self._starts >= _STARTS:
            return
        if not installed():
            if self._how == "haproxy" or not self._starts:
                self._log.warning("HAProxy is not installed: the job service itself leads requests to models")
            self._starts = _STARTS
            return
        self._starts += 1
        haproxy = HaProxy(self.door.sockets, self._prefix, self._counted, self._haproxy_ended, self._log)
        try:
            self.door.go_behind(haproxy.files.service)
            await haproxy.start()
        except (FrontBroken, OSError) as error:
            self._log.error("%s; the job service itself leads requests to models", error)
            self.door.come_back()
            await haproxy.end()
            return
        self._haproxy = haproxy
        self._log.info("HAProxy is on the users' port: it leads requests to models")

    async def _tell(self, route: ModelRoute) -> None:
        if self._haproxy is None:
            return
        try:
            if not await self._haproxy.lead(route) and route.endpoints:
                self._log.warning(
                    "HAProxy has no place for the model %s: the job service leads to it", route.key
                )
        except FrontBroken as broken:
            # Its requests go to the job service, or fail until it is told again.
            self._log.error("the model %s is not with HAProxy: %s", route.key, broken)

    def _haproxy_ended(self) -> None:
        gone, self._haproxy = self._haproxy, None
        for timer in self._allowed.values():
            timer.cancel()
        self._allowed.clear()
        if self.door is not None:
            self.door.come_back()
        self._restarting = asyncio.create_task(self._restart(gone))

    async def _restart(self, gone: HaProxy | None) -> None:
        async with self._lock:
            if gone is not None:
                await gone.end()
            await self._start()
            for route in list(self._routes.values()):
                await self._tell(route)

    async def _tell_allowed(self, who: str) -> None:
        async with self._lock:
            if self._haproxy is not None and who in self._allowed:
                try:
                    await self._haproxy.allow(who)
                except FrontBroken as broken:
                    self._log.warning("%s", broken)

    def _expire(self, who: str) -> None:
        self._allowed.pop(who, None)
        asyncio.get_running_loop().create_task(self._forbid(who))

    async def _forbid(self, who: str) -> None:
        async with self._lock:
            if self._haproxy is not None and who not in self._allowed:
                try:
                    await self._haproxy.forbid(who)
                except FrontBroken as broken:
                    self._log.warning("%s", broken)

    async def _forget_allowed(self, key: str) -> None:
        """Have all tokens asked about again that may ask a model. The caller has the lock."""
        for who in [one for one in self._allowed if one.partition(":")[2] == key]:
            self._allowed.pop(who).cancel()
            if self._haproxy is not None:
                try:
                    await self._haproxy.forbid(who)
                except FrontBroken as broken:
                    self._log.warning("%s", broken)

    def _counted(self, line: bytes) -> None:
        """Count a line of HAProxy's log: model, status, milliseconds, weight, retries, how it ended."""
        words = line.decode(errors="replace").split()
        if len(words) < 4 or not words[1].isdecimal():
            return
        time_ms, weight = words[2].lstrip("+-"), words[3]
        if time_ms.isdecimal():
            count = int(weight) if weight.isdecimal() else 1
            self.figures.count(words[0], int(words[1]), int(time_ms) / 1000, count)


async def _resolved(route: ModelRoute) -> ModelRoute:
    """Return the route with addresses in place of names: HAProxy is told addresses."""
    loop = asyncio.get_running_loop()
    found: list[Endpoint] = []
    for endpoint in route.endpoints:
        infos = await loop.getaddrinfo(endpoint.address, endpoint.port, type=socket.SOCK_STREAM)
        found.append(Endpoint(endpoint.job_id, str(infos[0][4][0]), endpoint.port))
    return replace(route, endpoints=tuple(found))
