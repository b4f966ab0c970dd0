"""The front of one job service: which models there are, who may ask them, and what leads the requests there.

HAProxy takes the users' port once the first model is served; the job service then listens behind it. A
request of a token that HAProxy does not know goes to the job service. That asks the hub, passes the request
on itself, and lets HAProxy take the token's next requests for some seconds. Without HAProxy it passes on all
of them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from minicluster_hub.serving.front.figures import Figures
from minicluster_hub.serving.front.haproxy import FrontBroken, HaProxy, installed
from minicluster_hub.serving.front.rights import Rights
from minicluster_hub.serving.routing import Endpoint, ModelRoute, model_key

_STARTS, _STARTS_WITHIN_S = 3, 600.0
"""HAProxy is started so many times within so many seconds, and no more."""


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
        self._started_at: list[float] = []
        self._warned = False
        self._rights = Rights(lambda right: self._do(self._tell_right(right)))
        self._lock = asyncio.Lock()
        self._works: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """What leads the requests, for people."""
        if self._haproxy is not None:
            return "HAProxy"
        if installed():
            return "the job service itself"
        return "the job service itself, which is slower: HAProxy is not installed"

    # What the manager tells.

    async def lead(self, route: ModelRoute) -> None:
        """Lead a model's requests to these replicas from now on. Raises OSError."""
        resolved = await _resolved(route)
        before = self._routes.get(route.model_id)
        self._routes[route.model_id] = self._by_key[route.key] = resolved
        async with self._lock:
            if before is not None and (before.shared, before.is_open) != (route.shared, route.is_open):
                await self._forget_rights(route.key)
            if resolved.endpoints and self._haproxy is None:
                await self._start()
            else:
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
                self.figures.forget(route.key)
                await self._forget_rights(route.key)
            haproxy = self._haproxy
            if haproxy is not None:
                try:
                    await haproxy.drop(model_id, route.key)
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
        if self._haproxy is not None:
            self._rights.renew(authorization, route.key)

    def count(self, key: str, status: int, time_s: float, weight: int = 1) -> None:
        """Count a request to a model that is served. weight: how many it stands for."""
        if key in self._by_key:
            self.figures.count(key, status, time_s, weight)

    async def close(self) -> None:
        self._rights.forget_all()
        for work in self._works:
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        if self._haproxy is not None:
            await self._haproxy.end()
            self._haproxy = None

    # HAProxy.

    async def _start(self) -> None:
        """Start HAProxy on the users' port, if it shall and can be there. The caller has the lock."""
        if self.door is None or self._how == "service" or not self._may_start():
            return
        haproxy = HaProxy(self.door.sockets, self._prefix, self._logged, self._haproxy_ended, self._log)
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
        for route in list(self._routes.values()):
            await self._tell(route)

    def _may_start(self) -> bool:
        """Whether HAProxy is there, and has not ended again and again."""
        now = self._clock()
        self._started_at = [at for at in self._started_at if at > now - _STARTS_WITHIN_S]
        if installed() and len(self._started_at) < _STARTS:
            self._started_at.append(now)
            self._warned = False
            return True
        if not self._warned:
            why = "ended again and again" if installed() else "is not installed"
            self._log.warning("HAProxy %s: the job service itself leads requests to models", why)
            self._warned = True
        return False

    async def _tell(self, route: ModelRoute) -> None:
        """Tell HAProxy where a model's requests go. The caller has the lock."""
        haproxy = self._haproxy
        if haproxy is None:
            return
        try:
            if not await haproxy.lead(route) and route.endpoints:
                self._log.warning(
                    "HAProxy has no place for the model %s: the job service leads to it", route.key
                )
        except FrontBroken as broken:
            self._log.error("the model %s is not with HAProxy: %s", route.key, broken)
            # Its requests go to the job service, and to no replica that was.
            with suppress(FrontBroken):
                await haproxy.drop(route.model_id, route.key)

    async def _tell_right(self, right: str) -> None:
        async with self._lock:
            await self._tell_right_now(right)

    async def _tell_right_now(self, right: str) -> None:
        """Tell HAProxy what a right is now. The caller has the lock."""
        haproxy = self._haproxy
        if haproxy is not None:
            try:
                await haproxy.allow(right, self._rights.of(right))
            except FrontBroken as broken:
                self._log.warning("%s", broken)

    async def _forget_rights(self, key: str) -> None:
        """Have all tokens asked about again that may ask a model. The caller has the lock."""
        for right in self._rights.forget(key):
            await self._tell_right_now(right)

    def _haproxy_ended(self) -> None:
        gone, self._haproxy = self._haproxy, None
        if gone is None:
            return  # `_start` has seen it.
        self._rights.forget_all()
        if self.door is not None:
            self.door.come_back()
        self._do(self._restart(gone))

    async def _restart(self, gone: HaProxy) -> None:
        async with self._lock:
            await gone.end()
            await self._start()

    def _do(self, work: Coroutine[None, None, None]) -> None:
        """Do something in the background. asyncio alone would not keep the task."""
        task = asyncio.get_running_loop().create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    def _logged(self, line: bytes) -> None:
        """Count a line of HAProxy's log: model, status, milliseconds, how many requests it stands for."""
        words = line.decode(errors="replace").split()
        if len(words) == 4 and all(word.isdecimal() for word in words[1:]):
            status, time_ms, weight = map(int, words[1:])
            self.count(words[0], status, time_ms / 1000, weight)


async def _resolved(route: ModelRoute) -> ModelRoute:
    """Return the route with addresses in place of names: HAProxy is told addresses. Raises OSError."""
    loop = asyncio.get_running_loop()
    found: list[Endpoint] = []
    for endpoint in route.endpoints:
        infos = await loop.getaddrinfo(endpoint.address, endpoint.port, type=socket.SOCK_STREAM)
        found.append(Endpoint(endpoint.job_id, str(infos[0][4][0]), endpoint.port))
    return replace(route, endpoints=tuple(found))
