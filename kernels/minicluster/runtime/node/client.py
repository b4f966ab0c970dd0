"""A data set agent's calls to the job service; agent/client.py says what they raise."""

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
    """Connections to the service, with the token of a node.

    It uses the paths of the last release, which job services of this one answer, too (`formerly`). While a
    cluster with several job services is upgraded, one of the last release may lead: it does not know
    `api/data-agents`.
    """

    def __init__(self, service_urls: Sequence[str], token: str, trust: ssl.SSLContext | None = None) -> None:
        super().__init__(service_urls, token, "keeper", trust)
        self._trust = trust

    async def wanted(self, nodes: Sequence[str], have: str) -> DataAgentOrders:
        """Return what the nodes are to have when it differs from `have`, or after some time the same."""
        query = {"have": have, "node": list(nodes)}
        answer = await self._ask("GET", "api/keepers/orders", params=query, timeout=LONG_TIMEOUT)
        return DataAgentOrders.model_validate_json(answer.content)

    async def report_data(self, report: DataAgentReport) -> None:
        await self._ask("POST", "api/keepers/report", content=report.model_dump_json(), headers=JSON)

    async def manifest(self, sha256: str) -> bytes:
        """Return a manifest, its hash checked, as that of a piece."""

        async def get(url: str) -> tuple[bytes, str]:
            data = (await self._ask("GET", url)).content
            return data, hashlib.sha256(data).hexdigest()

        return await _sound(sha256, get)

    async def piece(self, sha256: str, connection: PieceConnection) -> memoryview:
        """Return a piece, its hash checked: in the connection's memory, so until the next one."""

        async def get(url: str) -> tuple[memoryview, str]:
            return await self._of_any(lambda service: connection.get(service, url, self._trust))

        return await _sound(sha256, get)


async def _sound(sha256: str, get: Callable[[str], Awaitable[tuple[_Data, str]]]) -> _Data:
    """Return what has this hash. What is damaged at the service is refused (404)."""
    url = f"api/keepers/pieces/{sha256}"
    for asked in (url, f"{url}?doubted=1"):
        data, found = await get(asked)
        if found == sha256:
            return data
    raise ServiceUnavailable(f"The piece {sha256[:12]} arrived damaged.")
