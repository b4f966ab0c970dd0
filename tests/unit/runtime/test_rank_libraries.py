"""What ranks of other frameworks need before their cell: a reserved port, the number of GPUs, JAX itself."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

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


def distributed_of_jax(calls: list[dict[str, Any]]) -> ModuleType:
    """Return a module as `jax.distributed`, which notes the arguments of its calls."""

    def initialize(
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        local_device_ids: int | None = None,
        cluster_detection_method: str | None = None,
    ) -> None:
        calls.append(
            {
                "coordinator_address": coordinator_address,
                "num_processes": num_processes,
                "process_id": process_id,
                "local_device_ids": local_device_ids,
                "cluster_detection_method": cluster_detection_method,
            }
        )

    module: Any = ModuleType("jax.distributed")
    module.initialize = initialize
    return module


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep this process's variables and finders of modules as they were: a rank changes its own."""
    before = {**os.environ}
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("restored")
def test_what_initialize_is_not_given_is_that_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    calls: list[dict[str, Any]] = []
    ranks: list[Jax] = []
    for rank in range(2):
        distributed: Any = distributed_of_jax(calls)
        monkeypatch.setitem(sys.modules, "jax.distributed", distributed)
        ranks.append(Jax(order(first_rank=rank, master_port=store.port), 0))
        ranks[-1].offer()
        distributed.initialize()
    for call, rank in zip(calls, ranks, strict=True):
        assert call["coordinator_address"] == ranks[0].coordinator
        assert (call["num_processes"], call["process_id"]) == (2, rank.rank)
        # A node may belong to Slurm, which JAX would ask otherwise.
        assert call["cluster_detection_method"] == "deactivate"


@pytest.mark.usefixtures("restored")
def test_what_a_cell_gives_initialize_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    distributed: Any = distributed_of_jax(calls)
    monkeypatch.setitem(sys.modules, "jax.distributed", distributed)
    Jax(order(), 0).offer()
    distributed.initialize("10.0.0.1:1", 1, process_id=0, local_device_ids=2)
    distributed.initialize(cluster_detection_method="slurm")
    own = {"coordinator_address": "10.0.0.1:1", "num_processes": 1, "process_id": 0, "local_device_ids": 2}
    assert calls[0].items() >= own.items()
    assert [value for value in calls[1].values() if value is not None] == ["slurm"]


@pytest.mark.usefixtures("restored")
def test_gloo_gets_the_interface_that_leads_to_the_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    bridge: Any = ModuleType("jax._src.xla_bridge")
    bridge._jax = SimpleNamespace(make_gloo_tcp_collectives=lambda **named: calls.append(named))
    monkeypatch.setitem(sys.modules, bridge.__name__, bridge)
    Jax(order(), 0).offer()
    bridge._jax.make_gloo_tcp_collectives(distributed_client=1)
    assert calls == [{"distributed_client": 1, "interface": "lo"}]


@pytest.mark.usefixtures("restored")
def test_a_jax_that_takes_no_interface_is_called_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    bridge: Any = ModuleType("jax._src.xla_bridge")
    bridge._jax = SimpleNamespace(make_gloo_tcp_collectives=lambda distributed_client: calls.append(1))
    monkeypatch.setitem(sys.modules, bridge.__name__, bridge)
    Jax(order(), 0).offer()
    bridge._jax.make_gloo_tcp_collectives(distributed_client=1)
    assert calls == [1]


@pytest.mark.usefixtures("restored")
def test_a_jax_that_has_no_gloo_where_it_was_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", ModuleType("jax._src.xla_bridge"))
    Jax(order(), 0).offer()
    assert "ranks on CPUs may look for each other on the wrong one" in capsys.readouterr().err
