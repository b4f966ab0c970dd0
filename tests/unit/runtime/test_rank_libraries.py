"""What ranks of any framework need: a port that is kept for it, and how many GPUs there are."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from minicluster.runtime.rank.libraries.base import gpus_here
from minicluster.runtime.rank.libraries.meeting import ReservedPort


def served(address: str, *, shares: bool) -> socket.socket:
    """Listen at an address as a server does that shares its port with others of its kind, or does not."""
    server = socket.socket()
    if shares:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    host, _, port = address.rpartition(":")
    server.bind((host, int(port)))
    server.listen()
    return server


def test_a_reserved_port_is_for_a_server_that_shares_it_and_for_nobody_else() -> None:
    reserved = ReservedPort("127.0.0.1")
    with pytest.raises(OSError) as caught:
        served(reserved.address, shares=False)
    assert caught.value.errno == errno.EADDRINUSE
    with served(reserved.address, shares=True) as server, socket.create_connection(server.getsockname()):
        # The reservation does not listen, so that each connection is the server's.
        server.settimeout(5)
        connection, _ = server.accept()
        connection.close()


def test_two_reservations_are_apart() -> None:
    kept = [ReservedPort("127.0.0.1") for _ in range(50)]
    assert len({one.address for one in kept}) == 50


def test_gpus_are_counted_without_cuda(tmp_path: Path) -> None:
    assert gpus_here({}, tmp_path) == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus_here({}, tmp_path) == 2
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "GPU-1f0c"}, tmp_path) == 1
    assert gpus_here({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0
