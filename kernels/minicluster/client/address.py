"""Parses a hub's address, typed by hand or copied from any of the hub's pages in a browser."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from itertools import takewhile
from urllib.parse import urlsplit

from minicluster.errors import MiniclusterError

_PAGES = frozenset({"hub", "user", "services"})
"""First path segments of a hub's pages, after the hub's prefix."""


class AddressWrong(MiniclusterError):
    """An address that cannot be a hub's."""


@dataclass(frozen=True)
class Address:
    """A hub's address. url: includes the hub's prefix and ends with a slash."""

    url: str

    @property
    def service(self) -> str:
        return f"{self.url}services/minicluster/"

    @property
    def token_page(self) -> str:
        return f"{self.url}hub/token"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def readable(self) -> bool:
        """Whether others on the network can read the traffic."""
        return urlsplit(self.url).scheme == "http" and not _is_this_machine(self.host)

    def by(self, scheme: str) -> Address:
        """Return the same address with another scheme."""
        return Address(f"{scheme}:{self.url.partition(':')[2]}")


def understand(text: str) -> Address:
    """Return the hub's own address. Raises AddressWrong."""
    typed = text.strip().strip("<>\"'")
    if "://" not in typed:
        host = urlsplit(f"//{typed}").hostname or ""
        typed = f"{'http' if _is_this_machine(host) else 'https'}://{typed}"
    try:
        parts = urlsplit(typed)
        port = parts.port
    except ValueError as error:
        raise _wrong(text, str(error)) from None
    if parts.scheme.lower() not in ("http", "https"):
        raise _wrong(text, f"{parts.scheme}:// is not a scheme of a hub")
    if not parts.hostname:
        raise _wrong(text, "it has no host")
    try:
        parts.hostname.encode("idna")
    except UnicodeError:
        raise _wrong(text, f"{parts.hostname} is not a valid host name") from None
    if parts.username is not None:
        raise _wrong(text, "it contains a user name; the token says who you are")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Address(f"{parts.scheme.lower()}://{host}{f':{port}' if port else ''}{_prefix(parts.path)}")


def _prefix(path: str) -> str:
    parts = takewhile(lambda part: part not in _PAGES, filter(None, path.split("/")))
    return "".join(f"/{part}" for part in parts) + "/"


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _wrong(text: str, why: str) -> AddressWrong:
    return AddressWrong(
        f"{text.strip()!r} is not the address of a hub: {why}.",
        "Copy it from the browser where you log in, for example https://lab.example.org/hub/home.",
    )
