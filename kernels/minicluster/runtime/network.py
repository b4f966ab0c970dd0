"""The address and the interface that lead to a peer, from the kernel's routes, never guessed by name."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_DISCARD_PORT = 9


def source_address(peer: str) -> str:
    """Return this machine's own address on the way to `peer`. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, _DISCARD_PORT))
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


def interface_to(peer: str) -> str | None:
    """Return the name of the interface that leads to `peer`, None when it has no name here."""
    address = source_address(peer)
    if address.startswith("127."):
        return "lo"
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if _address_of(name) == address), None)


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:  # An interface without an IPv4 address.
            return None
        return socket.inet_ntoa(answer[20:24])
