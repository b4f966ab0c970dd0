"""How a rank that joins gets its state from a peer: torchft's transport, by address and past proxies."""

from __future__ import annotations

import urllib.request
from datetime import timedelta
from typing import Any

from torchft.checkpointing._serialization import _streaming_load
from torchft.checkpointing.http_transport import HTTPTransport


class PeerTransport(HTTPTransport[Any]):
    """Serves this rank's state at the address by which its peers know it.

    torchft tells the machine's host name instead, which other containers cannot resolve, and fetches
    with urllib's defaults, which follow http_proxy.
    """

    def __init__(self, host: str, timeout: timedelta) -> None:
        self._host = host
        super().__init__(timeout=timeout, num_chunks=0)
        handler: Any = self._server.RequestHandlerClass
        handler.log_message = lambda *_: None  # Else each fetch is a line of the rank's output.

    def address(self) -> str:
        port = self._server.socket.getsockname()[1]
        return f"http://{self._host}:{port}/checkpoint/"

    @classmethod
    def _load_from_address(cls, address: str, timeout: timedelta) -> object:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(address, timeout=timeout.total_seconds()) as body:
            # The peer is a rank of the same job, on the gang's own network.
            return _streaming_load(body, weights_only=False)
