"""A data set agent's requests to the job service; they raise the errors named in agent/client.py."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from minicluster.runtime.agent.client import JSON, LONG_TIMEOUT, AgentClient, ServiceUnavailable
from minicluster.runtime.node.piece_connection import PieceConnection
from minicluster.wire import DataAgentOrders, DataAgentReport

_Data = TypeVar("_Data")


class DataAgentClient(AgentClient):
    """Connections to the service, with a node's token.

    It uses the last release's paths, which this release's job services also serve (`formerly`). During an
    upgrade of a cluster with several job services, the leader may be of the last release, which lacks
    `api/data-agents`.
    """

    def __init__(self, service_urls: Sequence[str], token: str, trust: ssl.SSLContext | None = None) -> None:
        super().__init__(service_urls, token, "keeper", trust)

    async def wanted(self, nodes: Sequence[str], have: str) -> DataAgentOrders:
        """Long-poll the nodes' wanted data sets: returns when they differ from `have`, or at a timeout."""
        query = {"have": have, "node": list(nodes)}
        answer = await self._ask("GET", "api/keepers/orders", params=query, timeout=LONG_TIMEOUT)
        return DataAgentOrders.model_validate_json(answer.content)

    async def report_data(self, report: DataAgentReport) -> None:
        await self._ask("POST", "api/keepers/report", content=report.model_dump_json(), headers=JSON)

    async def manifest(self, sha256: str) -> bytes:
        """Return a manifest after checking its hash."""

        async def get(url: str) -> tuple[bytes, str]:
            data = (await self._ask("GET", url)).content
            return data, hashlib.sha256(data).hexdigest()

        return await _sound(sha256, get)

    async def piece(self, sha256: str, connection: PieceConnection) -> memoryview:
        """Return a piece after checking its hash. It is valid until the connection's next piece."""

        async def get(url: str) -> tuple[memoryview, str]:
            return await self._of_any(lambda service: connection.get(service, url, self._trust))

        return await _sound(sha256, get)


async def _sound(sha256: str, get: Callable[[str], Awaitable[tuple[_Data, str]]]) -> _Data:
    """Fetch data and check its hash. The service refuses data that is damaged there (404)."""
    url = f"api/keepers/pieces/{sha256}"
    for asked in (url, f"{url}?doubted=1"):
        data, found = await get(asked)
        if found == sha256:
            return data
    raise ServiceUnavailable(f"The piece {sha256[:12]} arrived damaged.")
