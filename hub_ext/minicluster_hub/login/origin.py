"""The origin of a login attempt: the address that our proxy saw, or a browser that logged in before."""

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
    """A block of addresses (an IPv4 address or an IPv6 /64), and the browser's id if it is known."""

    block: str
    device: str | None = None

    @property
    def key(self) -> str:
        """The key for counting attempts. A browser that logged in before has a key of its own."""
        return f"device {self.device}" if self.device else self.block


@dataclass
class OriginFinder:
    """Finds the origin of a request. proxy_url: our proxy's API. trusted: the proxies in front of ours."""

    proxy_url: str
    trusted: Collection[str] = ()
    _proxies: set[str] = field(default_factory=set)
    _asked_at: float = -_ASK_AGAIN_S

    async def of(self, handler: Any, name: str) -> Origin:
        """Return the origin of a request to log in as a user."""
        peer = plain(peer_of(handler.request))
        forwarded = handler.request.headers.get_list("X-Forwarded-For") if await self._is_proxy(peer) else ()
        address = client_address(peer, forwarded, self.trusted)
        return Origin(block_of(address), known_device(handler, name))

    async def _is_proxy(self, peer: str) -> bool:
        """Return whether the peer is our proxy. Only its X-Forwarded-For counts: a notebook server can call
        the hub, too."""
        if peer in self._proxies or ip_address(peer).is_loopback:
            return True
        if time.monotonic() - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = time.monotonic()
            self._proxies = await _addresses(urlsplit(self.proxy_url).hostname)
        return peer in self._proxies


def peer_of(request: Any) -> str:
    """Return the address of the connection. tornado's `remote_ip` would take a client's X-Real-Ip."""
    address = request.connection.context.address
    return str(address[0]) if isinstance(address, tuple) else "127.0.0.1"


def client_address(peer: str, forwarded: Iterable[str], trusted: Collection[str]) -> str:
    """Return the last address that is no trusted proxy's. The client may have forged those before it."""
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
    """Return an address in its usual form, an IPv4 address within IPv6 as IPv4. Raises ValueError."""
    return str(_parse(address))


def block_of(address: str) -> str:
    """Return the block of addresses of one client: an IPv4 address or an IPv6 /64."""
    found = _parse(address)
    return str(ip_network((found, 64), strict=False)) if found.version == 6 else str(found)


def known_device(handler: Any, name: str) -> str | None:
    """Return the browser's id if this user logged in from it before. The hub signs the cookie."""
    value = handler.get_secure_cookie(_DEVICE_COOKIE, max_age_days=_DEVICE_DAYS)
    owner, _, device = (value or b"").decode("utf-8", "replace").partition(":")
    return device if device and owner == name else None


def remember_device(handler: Any, name: str) -> None:
    """Set the cookie by which a later login shows that this user knows the browser. It grants no access."""
    device = known_device(handler, name) or secrets.token_hex(16)
    handler._set_cookie(
        _DEVICE_COOKIE, f"{name}:{device}", path=handler.hub.base_url, expires_days=_DEVICE_DAYS
    )


def _parse(address: str) -> IPv4Address | IPv6Address:
    found = ip_address(address.partition("%")[0])
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found


async def _addresses(host: str | None) -> set[str]:
    """Return all addresses of a host; none if the name cannot be resolved."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {plain(str(address[0])) for *_, address in found}
