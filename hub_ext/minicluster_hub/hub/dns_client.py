"""JupyterHub's HTTP client among containers, which get another address each time they start."""

from __future__ import annotations

import socket
from typing import Any

from aiohttp import ClientTimeout, ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

_CONNECT_LIMIT_S, _ANSWER_LIMIT_S = 3, 15


class FreshResolver(AbstractResolver):
    """Asks for an address at each connection: aiohttp's usual resolver keeps one for Docker's 10 minutes."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return await ThreadedResolver().resolve(host, port, family)

    async def close(self) -> None:
        """Hold nothing, so let go of nothing."""


def client_options() -> dict[str, dict[str, Any]]:
    """Return traits of JupyterHubHTTPClient.

    The address of a container that ended swallows connections. A machine that died leaves them open: whoever
    waits for an answer there without a limit, waits for a quarter of an hour.
    """
    return {
        "connector_options": {"use_dns_cache": False, "resolver": FreshResolver()},
        "session_options": {
            "timeout": ClientTimeout(sock_connect=_CONNECT_LIMIT_S, sock_read=_ANSWER_LIMIT_S)
        },
    }
