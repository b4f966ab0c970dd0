"""Values of options as people write them, parsed and checked; the error says what is wanted."""

from __future__ import annotations

import argparse
import re
from ipaddress import ip_network
from pathlib import Path

from minicluster.wire.bounds import plain_address
from minicluster_hub.cluster.firewall.rules import Endpoint

_LEAST_MEMORY_BYTES = 500 * 10**6
_DOMAIN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z](?:[a-z0-9-]*[a-z0-9])?", re.IGNORECASE)


def port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text}: a port is a number from 1 to 65535")
    return int(text)


def endpoint(text: str) -> str:
    try:
        Endpoint.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text}: want ADDRESS:PORT, like 10.0.0.5:5432 ({error})"
        ) from error
    return text


def network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: want a network, like 10.0.0.0/8 ({error})") from error


def address(text: str) -> str:
    try:
        return plain_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: want an address, like 10.0.0.53 ({error})") from error


def domain(text: str) -> str:
    if text == "none":
        return ""
    if not _DOMAIN.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text}: a domain is a name like hub.example.org, without a port")
    return text.lower()


def size(text: str) -> int:
    units = {"": 1, "m": 10**6, "g": 10**9, "t": 10**12}
    number = text.lower().rstrip("mgt")
    unit = text.lower()[len(number) :]
    if not number.isdigit() or unit not in units:
        raise argparse.ArgumentTypeError(f"{text}: a size is a number of bytes, or 500m, 200g, 2t")
    return int(number) * units[unit]


def memory(text: str) -> int:
    """Return a size with which hub and job service can start."""
    if size(text) < _LEAST_MEMORY_BYTES:
        raise argparse.ArgumentTypeError(f"{text}: hub and job service need 500m at least, each")
    return size(text)


def url_of(path: str) -> str:
    """Return the database's URL, read from a file."""
    if url := text_of(path).strip():
        return url
    raise argparse.ArgumentTypeError(f"{path} is empty: want the database's URL in it")


def service_option(text: str) -> str:
    """Return an option of the job service. Refuse a database's URL with a password."""
    name, _, value = text.partition("=")
    if name.endswith(("db-url", "db_url")):
        without_password(value)
    return text


def without_password(url: str) -> str:
    """Return a database's URL. Refuse one with a password."""
    from minicluster_hub.support.database_url import has_password

    if has_password(url):
        raise argparse.ArgumentTypeError(
            "it has a password, and everybody on this machine can read arguments: put the URL into a file"
            " and give --db-url-file - < FILE, with -i for docker run"
        )
    return url


def text_of(path: str) -> str:
    """Return the text of a file; - is stdin."""
    try:
        return Path("/dev/stdin" if path == "-" else path).read_text()
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{path} cannot be read ({error.strerror}); inside the container it has to be mounted, like"
            f" -v $PWD:/here:ro and /here/FILE"
        ) from error
