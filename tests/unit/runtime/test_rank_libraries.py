"""What ranks of other frameworks need before their cell: a reserved port, the number of GPUs, JAX itself."""

from __future__ import annotations

import errno
import socket
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from minicluster.pickling import jax_arrays
from minicluster.runtime.rank.libraries.base import gpus_here
from minicluster.runtime.rank.libraries.jax import Jax
from minicluster.runtime.rank.libraries.meeting import ReservedPort
from minicluster.wire import RunOrder


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


def test_gpus_are_counted_without_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpus_here({}, tmp_path) == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus_here({}, tmp_path) == 2
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "GPU-1f0c"}, tmp_path) == 1
    assert gpus_here({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == 0


def order(**more: Any) -> RunOrder:
    ranks = {"first_rank": 0, "local_world_size": 1, "group_rank": 0, "group_world_size": 1, "world_size": 2}
    store = {"master_addr": "127.0.0.1", "master_port": 1}
    return RunOrder(attempt=1, job_id=1, payload_sha256="a" * 64, **{**ranks, **store, **more})


ARRAYS = jax_arrays.__name__.encode()
"""What is in a pickle with arrays of JAX."""


@pytest.mark.parametrize(
    ("pickled", "more", "begun"),
    [
        (ARRAYS, {}, 1),
        (b"others", {}, 0),
        (ARRAYS, {"world_size": 1}, 0),
        (ARRAYS, {"fault_tolerant": True}, 0),
    ],
)
def test_arrays_of_jax_begin_its_ranks_where_these_stay(
    pickled: bytes, more: dict[str, Any], begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    jax: Any = ModuleType("jax")
    jax.__spec__ = ModuleSpec("jax", None)
    jax.distributed = SimpleNamespace(initialize=lambda: calls.append("begun"))
    monkeypatch.setitem(sys.modules, "jax", jax)
    Jax(order(**more), 0).before_names(pickled)
    assert len(calls) == begun


def test_ranks_without_jax_say_that_its_arrays_come_as_numpys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    Jax(order(), 0).before_names(ARRAYS)
    assert "arrays of JAX came as NumPy's" in capsys.readouterr().err
