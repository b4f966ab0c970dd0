"""The clusters that this server may use: its hub's, or those to which its user connected."""

from __future__ import annotations

import os

from minicluster.client.address import Address, AddressWrong, understand
from minicluster.client.certificates import context_for
from minicluster.client.client import TOKEN_NAME, JobServiceClient
from minicluster.client.connect import EnvironmentSettings
from minicluster.client.connection import URL_NAME, ExternalAccess, ServiceError, own_pages
from minicluster.client.credentials import Credentials, SavedCluster

_RETRY_FOR_S = 5.0


class Clusters:
    """One connection per cluster, opened on first use."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, JobServiceClient]] = {}

    def service(self, address: str) -> JobServiceClient:
        """Return the connection to a service, given its address in a notebook.

        Each token is sent only to its own cluster, whatever the notebook contains. Raises MiniclusterError.
        """
        own = self._own(address)
        kept = None if own else self._kept(address)
        token = own or (kept and kept.token)
        if not token:
            raise ServiceError(
                f"This Jupyter server has no token for the cluster at {address}.",
                "Connect once, in a notebook: %distribute connect",
                "unknown_cluster",
            )
        known = self._open.get(address)
        if known is None or known[0] != token:
            self._open[address] = known = (token, _connected(address, token, kept))
        return known[1]

    def addresses(self) -> list[str]:
        """Return the addresses of services that may have jobs of this server's notebooks."""
        if os.environ.get(TOKEN_NAME):
            return [_own_address()]
        settings, last = EnvironmentSettings.of(os.environ), Credentials().last()
        url = understand(settings.url).url if settings.url else last.url if last else ""
        return [Address(url).service] if url else []

    @property
    def has_hub(self) -> bool:
        """Whether a hub started this server: its notebooks are opened for that cluster."""
        return bool(os.environ.get(TOKEN_NAME)) and bool(_own_address())

    def _own(self, address: str) -> str:
        """Return the hub's token if this is the address of this server's hub."""
        is_ours = bool(address) and address == _own_address()
        return os.environ.get(TOKEN_NAME, "") if is_ours else ""

    def _kept(self, address: str) -> SavedCluster | None:
        """Return the cluster at this address, if the user connected to it."""
        try:
            hub = understand(address)
        except AddressWrong:
            return None
        if hub.service != address:
            return None
        settings = EnvironmentSettings.of(os.environ)
        if settings.url and settings.token and understand(settings.url).url == hub.url:
            return SavedCluster(url=hub.url, token=settings.token)
        return Credentials().of(hub.url)


def _own_address() -> str:
    return own_pages(os.environ.get(URL_NAME, ""))


def _connected(address: str, token: str, kept: SavedCluster | None) -> JobServiceClient:
    if kept is None:
        return JobServiceClient(os.environ[URL_NAME], token, _RETRY_FOR_S)
    outside = ExternalAccess(Address(kept.url).token_page, context_for(kept.pem) if kept.pem else None)
    return JobServiceClient(address, token, _RETRY_FOR_S, outside)
