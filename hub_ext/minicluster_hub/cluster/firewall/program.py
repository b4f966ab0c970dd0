"""`run firewall`, on each node: blocks users' containers from the machines' own ports.

Its only capability is to change the node's packet filter. It has neither Docker's socket nor a secret.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from minicluster.wire.limits import plain_address
from minicluster_hub.cluster.firewall.rules import (
    ALLOWED_ENV,
    BRIDGE,
    CHAIN,
    DENIED_ENV,
    IPV4,
    IPV6,
    MANAGERS_ENV,
    NAME_SERVERS_ENV,
    SERVICES_ENV,
    Access,
    Endpoint,
    name_servers,
    restore_input,
)

ADDRESSES_PATH = "api/nodes/addresses"
_CA_FILE = Path("/run/secrets/service_ca")
_RESOLV_CONF = Path("/etc/resolv.conf")
_PATIENCE_S, _LOOK_AGAIN_S = 5.0, 10.0
"""Seconds between checks of the rules: another program may flush them (firewalld when it reloads its own)."""
_FORGET_AFTER = 60
"""Answers without an address until it is dropped: a job service that has just started knows few nodes."""
_IPV6_IS_ON = Path("/proc/net/if_inet6")
_WAIT_FOR_LOCK = "--wait=10"
_FROM_CONTAINERS = ("INPUT", "DOCKER-USER")

log = logging.getLogger(__name__)


class FilterUnusable(Exception):
    """The node's packet filter refused a command; the message is from its program."""


def access_of(environ: Mapping[str, str]) -> Access:
    """Read the choices of `up`. Raises ValueError."""
    allowed, denied, managers, asked = (
        tuple(one for one in environ.get(name, "").split(",") if one)
        for name in (ALLOWED_ENV, DENIED_ENV, MANAGERS_ENV, NAME_SERVERS_ENV)
    )
    return Access(tuple(map(Endpoint.of, allowed)), denied, managers, asked)


class Nodes:
    """The addresses of all nodes, as the job service last reported them: machines join without an `up`."""

    def __init__(self, urls: Sequence[str], ca_file: Path) -> None:
        self._urls = urls
        self._ca_file = ca_file
        self._missed: dict[str, int] = {}
        """By address, the number of answers in a row without it."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Nodes:
        return cls([url for url in environ.get(SERVICES_ENV, "").split(",") if url], _CA_FILE)

    def addresses(self) -> tuple[str, ...]:
        for url in self._urls:
            with contextlib.suppress(OSError, ValueError, TypeError):  # no answer, or not from a job service
                self._update(self._request(url))
                break
        return tuple(sorted(self._missed))

    def _update(self, addresses: Sequence[str]) -> None:
        missed = {address: answers + 1 for address, answers in self._missed.items()}
        missed |= dict.fromkeys(addresses, 0)
        self._missed = {address: answers for address, answers in missed.items() if answers < _FORGET_AFTER}

    def _request(self, url: str) -> tuple[str, ...]:
        context = ssl.create_default_context(cafile=str(self._ca_file))
        context.check_hostname = False  # the authority signed only the job service's certificate
        url = f"{url}{ADDRESSES_PATH}"  # from `up`, never from a user
        with urllib.request.urlopen(url, timeout=_PATIENCE_S, context=context) as answer:  # noqa: S310
            addresses = json.load(answer)["addresses"]
        return tuple(plain_address(one) for one in addresses)


class PacketFilter:
    """The filter of one version of IP, in the iptables back end that Docker uses on this node."""

    def __init__(self, version: int) -> None:
        self._version = version
        name = "iptables" if version == IPV4 else "ip6tables"
        # Docker's chains are in the tables of one of the two back ends. Ours must be in the same tables.
        variants = (f"{name}-nft", f"{name}-legacy")
        self._program = next((one for one in variants if _succeeds(one, "-S", "DOCKER-USER")), variants[0])

    def install(self, access: Access) -> None:
        """Replace the chain in one step, and lead packets from containers through it first."""
        _run(
            f"{self._program}-restore", "--noflush", _WAIT_FOR_LOCK, text=restore_input(access, self._version)
        )
        for chain in self._chains():
            if not self._is_first(chain):
                self._unlink(chain)
                _run(self._program, _WAIT_FOR_LOCK, "-I", chain, *self._jump)

    def is_installed(self) -> bool:
        return all(self._is_first(chain) for chain in self._chains())

    def remove(self) -> None:
        """Remove everything that `install` made."""
        for chain in self._chains():
            self._unlink(chain)
        if _succeeds(self._program, "-S", CHAIN):
            _run(self._program, _WAIT_FOR_LOCK, "-F", CHAIN)
            _run(self._program, _WAIT_FOR_LOCK, "-X", CHAIN)

    @property
    def _jump(self) -> tuple[str, ...]:
        return "-i", BRIDGE, "-j", CHAIN

    def _chains(self) -> Iterator[str]:
        for chain in _FROM_CONTAINERS:
            if _succeeds(self._program, "-S", chain):
                yield chain

    def _is_first(self, chain: str) -> bool:
        rules = _run(self._program, "-S", chain).splitlines()
        return rules[1:2] == [" ".join(("-A", chain, *self._jump))]

    def _unlink(self, chain: str) -> None:
        while _succeeds(self._program, _WAIT_FOR_LOCK, "-D", chain, *self._jump):
            pass


def main() -> int:
    """Install the rules, and reinstall them when they are gone, until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    chosen, nodes, filters = access_of(os.environ), Nodes.of(os.environ), _filters()
    access: Access | None = None
    while True:
        wanted = replace(
            chosen,
            nodes=(*chosen.nodes, *nodes.addresses()),
            name_servers=chosen.name_servers or name_servers(_RESOLV_CONF.read_text()),
        )
        for one in filters:
            if wanted != access or not one.is_installed():
                one.install(wanted)
                log.info("users' containers may reach this of the machines' network: %s", wanted)
        access = wanted
        if ended.wait(_LOOK_AGAIN_S):
            return 0  # The rules stay: users' containers still run, and a new version of this service starts.


def remove() -> None:
    """Remove the rules of this node."""
    for one in _filters():
        one.remove()


def _filters() -> list[PacketFilter]:
    return [PacketFilter(version) for version in (IPV4, IPV6) if version == IPV4 or _IPV6_IS_ON.exists()]


def _run(*command: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FilterUnusable(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
