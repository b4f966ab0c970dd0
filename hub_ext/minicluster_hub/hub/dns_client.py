"""Options of JupyterHub's HTTP client for containers, whose addresses change at each start."""

from __future__ import annotations

import socket
from typing import Any

from aiohttp import ClientTimeout, ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

_CONNECT_LIMIT_S, _ANSWER_LIMIT_S = 3, 15


class FreshResolver(AbstractResolver):
    """Looks up the address at each connection. aiohttp's usual resolver keeps it for Docker's 10 minutes."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return await ThreadedResolver().resolve(host, port, family)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def client_options() -> dict[str, dict[str, Any]]:
    """Return traits of JupyterHubHTTPClient.

    The address of a container that ended answers no connection. Connections to a machine that died stay open:
    without a limit, the hub would wait a quarter of an hour for an answer.
    """
    return {
        "connector_options": {"use_dns_cache": False, "resolver": FreshResolver()},
        "session_options": {
            "timeout": ClientTimeout(sock_connect=_CONNECT_LIMIT_S, sock_read=_ANSWER_LIMIT_S)
        },
    }
