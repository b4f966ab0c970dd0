"""Parses and checks values of options as people write them; an error says what is allowed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path

from minicluster.wire.limits import plain_address
from minicluster_hub.cluster.firewall.rules import Endpoint

_LEAST_MEMORY_BYTES = 500 * 10**6
_DOMAIN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z](?:[a-z0-9-]*[a-z0-9])?", re.IGNORECASE)
_SIZE = re.compile(r"(\d+)([mgt]?)", re.IGNORECASE)
_UNITS = {"": 1, "m": 10**6, "g": 10**9, "t": 10**12}


def port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text}: a port is a number from 1 to 65535")
    return int(text)


def endpoint(text: str) -> str:
    _check(Endpoint.of, text, "ADDRESS:PORT, like 10.0.0.5:5432")
    return text


def network(text: str) -> str:
    return str(_check(ip_network, text, "a network, like 10.0.0.0/8"))


def address(text: str) -> str:
    return str(_check(plain_address, text, "an address, like 10.0.0.53"))


def _check(parse: Callable[[str], object], text: str, wanted: str) -> object:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: want {wanted} ({error})") from error


def domain(text: str) -> str:
    if text == "none":
        return ""
    if not _DOMAIN.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text}: a domain is a name like hub.example.org, without a port")
    return text.lower()


def size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: a size is a number of bytes, or 500m, 200g, 2t")
    return int(found[1]) * _UNITS[found[2].lower()]


def memory(text: str) -> int:
    """Return a memory size in bytes. Refuse one that is too small for hub and job service."""
    if size(text) < _LEAST_MEMORY_BYTES:
        raise argparse.ArgumentTypeError(f"{text}: hub and job service need 500m at least, each")
    return size(text)


def gpus(text: str) -> float:
    return 0.5 if text == "0.5" else count(text)


def count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text}: a number from 0 on")
    return int(text)


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
