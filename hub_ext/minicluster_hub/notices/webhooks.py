"""Sends notices as HTTP requests to hosts that an admin allows.

A user chooses the URL, and the job service calls it from inside the cluster. So redirects are not followed,
URLs must not have passwords, and if only a pattern allows a host, its addresses must be public at each call.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.httputil import HTTPInputError
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from minicluster.wire import Notice
from minicluster_hub.notices.errors import AddressRefused, NotSent

TIMEOUT_S = 10.0
_ANSWER_BYTES = 64 * 1024
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[!-\[\]-~]*)?")
_PATTERN = re.compile(r"[*?\[]")


class Webhooks:
    """hosts: "chat.lab.org" or "chat.lab.org:8443". A pattern with * allows only public hosts."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = tuple(host.lower() for host in hosts)
        self._clients: dict[bool, AsyncHTTPClient] = {}

    def check(self, url: str) -> None:
        """Raise AddressRefused unless notices may go to this URL."""
        if not self.hosts:
            raise AddressRefused("this cluster sends no webhooks", "An admin sets notice_hosts.")
        if not _URL.fullmatch(url):
            raise AddressRefused("the webhook must be a URL like https://host/path, without a password")
        host = _host(url)
        if not any(fnmatchcase(host, allowed) for allowed in self.hosts):
            raise AddressRefused(
                f"webhooks may not call {host}", f"An admin allows hosts: {', '.join(self.hosts)}."
            )
        if url.startswith("http:") and not self._named(host):
            raise AddressRefused(
                f"webhooks to {host} need https", "Or an admin adds the host's full name to notice_hosts."
            )

    async def send(self, url: str, notice: Notice) -> None:
        """Send a notice. Raises AddressRefused and NotSent."""
        self.check(url)
        try:
            await self._client(public=not self._named(_host(url))).fetch(
                url,
                method="POST",
                body=notice.model_dump_json(),
                headers={"Content-Type": "application/json", "User-Agent": "minicluster"},
                follow_redirects=False,
                connect_timeout=TIMEOUT_S,
                request_timeout=TIMEOUT_S,
            )
        except HTTPClientError as error:
            raise NotSent(f"{_host(url)} answered {error.code} {error.message}") from None
        except (OSError, ValueError, HTTPInputError) as error:
            raise NotSent(f"{_host(url)} cannot be reached: {error}") from None

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _named(self, host: str) -> bool:
        return host in self.hosts and not _PATTERN.search(host)

    def _client(self, *, public: bool) -> AsyncHTTPClient:
        if public not in self._clients:
            resolver = Addresses(public_only=public)
            made = SimpleAsyncHTTPClient(force_instance=True, resolver=resolver, max_body_size=_ANSWER_BYTES)
            self._clients[public] = made
        return self._clients[public]


class Addresses(Resolver):
    """Resolves names in own threads, since that may take long. public_only: refuse private addresses."""

    def initialize(self, public_only: bool) -> None:
        self._public_only = public_only
        self._threads = ThreadPoolExecutor(2, "webhook-names")

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, Any]]:
        """Return the addresses of a host. Raises OSError."""
        look = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look)
        inside = [address[0] for *_, address in found if not is_public(str(address[0]))]
        if inside and self._public_only:
            raise OSError(
                f"its address {inside[0]} is not public, so an admin must add its full name to notice_hosts"
            )
        return [(kind, address) for kind, _, _, _, address in found]

    def close(self) -> None:
        self._threads.shutdown(wait=False)


def is_public(text: str) -> bool:
    """Return whether an address is public and unicast, also within IPv6 (IPv4-mapped, 6to4)."""
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address.sixtofour or address
    return address.is_global and not address.is_multicast


def _host(url: str) -> str:
    """Return the host, with its port unless that is the scheme's default."""
    parts = urlsplit(url.lower())
    host = parts.netloc
    return host.removesuffix(":443" if parts.scheme == "https" else ":80")
