"""Where a try to log in comes from: the address that our own proxy saw, or a browser known from before."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

_DEVICE_COOKIE = "minicluster-device"
_DEVICE_DAYS = 90
_ASK_AGAIN_S = 1.0


@dataclass(frozen=True)
class Origin:
    """A block of addresses (an IPv4 address, an IPv6 /64) and, if it is known, the browser."""

    block: str
    device: str | None = None

    @property
    def key(self) -> str:
        """What tries are counted by: who logged in from this browser before has a line of his own."""
        return f"device {self.device}" if self.device else self.block


@dataclass
class OriginFinder:
    """Finds the origin of a request; `proxy_url` is our proxy's API, `trusted` proxies before it."""

    proxy_url: str
    trusted: Collection[str] = ()
    _proxies: set[str] = field(default_factory=set)
    _asked_at: float = -_ASK_AGAIN_S

    async def of(self, handler: Any, name: str) -> Origin:
        """Return where a request for a user's login comes from."""
        peer = plain(peer_of(handler.request))
        forwarded = handler.request.headers.get_list("X-Forwarded-For") if await self._is_proxy(peer) else ()
        address = client_address(peer, forwarded, self.trusted)
        return Origin(block_of(address), known_device(handler, name))

    async def _is_proxy(self, peer: str) -> bool:
        """Believe X-Forwarded-For only from our proxy: a notebook server can call the hub, too."""
        if peer in self._proxies or ip_address(peer).is_loopback:
            return True
        if time.monotonic() - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = time.monotonic()
            self._proxies = await _addresses(urlsplit(self.proxy_url).hostname)
        return peer in self._proxies


def peer_of(request: Any) -> str:
    """The address of the connection. tornado's `remote_ip` believes any X-Real-Ip that a client writes."""
    address = request.connection.context.address
    return str(address[0]) if isinstance(address, tuple) else "127.0.0.1"


def client_address(peer: str, forwarded: Iterable[str], trusted: Collection[str]) -> str:
    """Return the last address that no trusted proxy has; those before it are the client's own words."""
    hops = [hop.strip() for line in forwarded for hop in line.split(",")]
    for hop in reversed(hops):
        try:
            address = plain(hop)
        except ValueError:
            return peer
        if address not in trusted:
            return address
    return peer


def plain(address: str) -> str:
    """Write an address in its usual form; an IPv4 address within IPv6 as itself. Raises ValueError."""
    return str(_parse(address))


def block_of(address: str) -> str:
    """Return what one client has to itself: an IPv4 address, an IPv6 /64."""
    found = _parse(address)
    return str(ip_network((found, 64), strict=False)) if found.version == 6 else str(found)


def known_device(handler: Any, name: str) -> str | None:
    """Return the browser's id if this user logged in from it before: the cookie is signed by the hub."""
    value = handler.get_secure_cookie(_DEVICE_COOKIE, max_age_days=_DEVICE_DAYS)
    owner, _, device = (value or b"").decode("utf-8", "replace").partition(":")
    return device if device and owner == name else None


def remember_device(handler: Any, name: str) -> None:
    """Let the browser show later that this user logged in from it. It opens nothing by itself."""
    device = known_device(handler, name) or secrets.token_hex(16)
    handler._set_cookie(
        _DEVICE_COOKIE, f"{name}:{device}", path=handler.hub.base_url, expires_days=_DEVICE_DAYS
    )


def _parse(address: str) -> IPv4Address | IPv6Address:
    found = ip_address(address.partition("%")[0])
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


async def _addresses(host: str | None) -> set[str]:
    """All addresses of a host; none where the name cannot be found."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {plain(str(address[0])) for *_, address in found}
