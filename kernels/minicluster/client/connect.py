"""`%distribute connect URL`: connects a notebook outside of the hub, by the hub's address and a token.

All requests go to the hub's proxy. Version differences from the cluster are printed before a cell runs.
"""

from __future__ import annotations

import getpass
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minicluster.capture import versions
from minicluster.client import certificates
from minicluster.client.address import Address, understand
from minicluster.client.client import TOKEN_NAME, JobServiceClient
from minicluster.client.connection import PERMISSIONS, URL_NAME, ExternalAccess, ServiceError
from minicluster.client.credentials import Credentials, SavedCluster
from minicluster.client.reach import find_hub
from minicluster.errors import MiniclusterError
from minicluster.wire import About

TOKEN_VARIABLE = "MINICLUSTER_TOKEN"  # noqa: S105 - the name of a variable, not a token
TOKEN_FILE_VARIABLE = "MINICLUSTER_TOKEN_FILE"  # noqa: S105 - as above
CA_VARIABLE = "MINICLUSTER_CA"
_NARROW = (
    "custom:minicluster:submit!",
    "custom:minicluster:read!",
    "custom:minicluster:models!",
    "access:services!service=minicluster",
    "read:users:",
)


class NotConnected(MiniclusterError):
    """This notebook is not connected to a cluster, or has no token for it."""


@dataclass(frozen=True)
class EnvironmentSettings:
    """The environment's settings for a notebook outside of the hub."""

    url: str = ""
    token: str = ""
    ca: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> EnvironmentSettings:
        """Read the settings. Raises NotConnected if the token's file cannot be read."""
        token, path = environ.get(TOKEN_VARIABLE, ""), environ.get(TOKEN_FILE_VARIABLE, "")
        if path and not token:
            try:
                token = Path(path).read_text()
            except OSError as error:
                raise NotConnected(f"{TOKEN_FILE_VARIABLE}={path}: {error.strerror}.") from None
        return cls(environ.get(URL_NAME, ""), token.strip(), environ.get(CA_VARIABLE, ""))


def connect(url: str | None, ca: str, trust: str) -> JobServiceClient:
    """Connect to the hub at `url`, at MINICLUSTER_URL, or to the last one; save the token."""
    if not url and os.environ.get(TOKEN_NAME):
        print("Connected to this hub's own cluster.")  # noqa: T201
        return JobServiceClient.from_environment()
    settings, credentials = EnvironmentSettings.of(os.environ), Credentials()
    kept = _which(url or "", settings, credentials)
    pem = _trusted(Address(kept.url), ca, trust, settings) or kept.pem
    address = find_hub(Address(kept.url), _tls(pem))
    kept = credentials.of(address.url) or kept
    token = settings.token or kept.token
    try:
        service, about = _open(address, pem, token) if token else _ask(address, pem)
    except ServiceError as error:
        if settings.token or not kept.token or error.code != "not_authenticated":
            raise
        print("The saved token of this hub expired or was revoked.")  # noqa: T201
        service, about = _ask(address, pem)
    _say(address, about)
    if not settings.token:
        credentials.keep(SavedCluster(url=address.url, token=service.token, pem=pem))
        print(f"The token is saved in {credentials}, readable by you alone.")  # noqa: T201
    return service


def disconnect() -> None:
    """Forget the token of the last connection."""
    credentials = Credentials()
    last = credentials.last()
    if last is None:
        print("No token is saved.")  # noqa: T201
        return
    credentials.forget(last.url)
    page = Address(last.url).token_page
    print(f"The token of {last.url} is deleted here. Revoke it on the hub, too: {page}")  # noqa: T201


def open_known() -> JobServiceClient:
    """Connect a new kernel without a prompt: to its hub, else by the environment, else to the last cluster.

    Raises NotConnected, and what `connect` raises.
    """
    if os.environ.get(TOKEN_NAME):
        return JobServiceClient.from_environment()
    settings, credentials = EnvironmentSettings.of(os.environ), Credentials()
    kept = _which("", settings, credentials)
    pem = _trusted(Address(kept.url), "", "", settings) or kept.pem
    token = settings.token or kept.token
    if not token:
        raise NotConnected(f"There is no token for {kept.url} yet.", "Connect once: %distribute connect")
    address = find_hub(Address(kept.url), _tls(pem))
    service, about = _open(address, pem, token)
    _say(address, about)
    return service


def _which(url: str, settings: EnvironmentSettings, credentials: Credentials) -> SavedCluster:
    """Return the requested cluster, with its saved token."""
    if url or settings.url:
        address = understand(url or settings.url)
        return credentials.of(address.url) or SavedCluster(url=address.url, token="")
    last = credentials.last()
    if last is None:
        raise NotConnected(
            "This notebook is not connected to a cluster.",
            "%distribute connect https://lab.example.org (as in the browser), or open it on the hub.",
        )
    return last


def _trusted(address: Address, ca: str, trust: str, settings: EnvironmentSettings) -> str:
    """Return the certificates to trust, as given on the line or in the environment."""
    if trust:
        return certificates.by_fingerprint(address, trust)
    path = ca or settings.ca
    return certificates.read_file(path) if path else ""


def _tls(pem: str) -> ssl.SSLContext | None:
    return certificates.context_for(pem) if pem else None


def _open(address: Address, pem: str, token: str) -> tuple[JobServiceClient, About]:
    """Connect by a token. Raises ServiceError."""
    service = JobServiceClient(address.service, token, outside=ExternalAccess(address.token_page, _tls(pem)))
    about = service.about()
    service.user = about.user
    return service, about


def _ask(address: Address, pem: str) -> tuple[JobServiceClient, About]:
    print(f"Make a token at {address.token_page}: press Fill in there, which asks for\n{PERMISSIONS}")  # noqa: T201
    try:
        token = getpass.getpass("The token: ").strip()
    except Exception as error:
        # Front ends that cannot prompt for input raise their own error type.
        raise NotConnected(
            f"This front end cannot ask for the token ({type(error).__name__}).",
            f"Give it before the kernel starts: {TOKEN_FILE_VARIABLE}=FILE, with {URL_NAME}={address.url}",
        ) from None
    if not token or not token.isascii() or not token.isprintable():
        raise NotConnected("That is not a token.", f"Copy it whole from {address.token_page}.")
    return _open(address, pem, token)


def _say(address: Address, about: About) -> None:
    """Print the cluster of this notebook, and version differences."""
    print(f"Connected to {address.url} as {about.user}.")  # noqa: T201
    ours = versions.here()
    lines = versions.differences(ours, about.ranks)
    if address.readable:
        lines.append("This is plain http: others on the network can read your token and your data.")
    if wide := [scope for scope in about.scopes if not scope.startswith(_NARROW)]:
        lines.append(
            f"The token may do more than run jobs ({', '.join(wide[:3])}, ...). Safer: revoke it, and make "
            f"one with these permissions: {PERMISSIONS}"
        )
    for line in lines:
        print(f"- {line}")  # noqa: T201
    if not lines:
        print(f"Python {ours.python_minor} and torch {ours.torch}, as on the cluster.")  # noqa: T201
