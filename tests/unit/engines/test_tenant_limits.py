"""Resource limits of a job's or notebook server's container."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster.runtime.agent import task_limits
from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.swarm.engine import SwarmEngine
from minicluster_hub.engines.swarm.spec import TaskSettings, service_spec
from minicluster_hub.engines.swarm.tenant_limits import PIDS, NodeReserve, tenants_memory_bytes

from .swarm_nodes import node

GB = 1 << 30
PC = node(2, memory_bytes=32 * GB, cpus=8.0)


def task(
    slots: int = 1, of: int = 2, on: Any = PC, settings: TaskSettings | None = None, **launch: Any
) -> Any:
    asked = TaskLaunch(1, 1, "ada", on.name, tuple(range(slots)), "token", ("http://x/",), **launch)
    made = service_spec(asked, on, ("cpu",) * of, "secret", settings or TaskSettings(image="i@sha256:a"))
    return made["task_template"]


def limits(**more: Any) -> dict[str, int]:
    return task(**more)["Resources"]["Limits"]


def shm_bytes(**more: Any) -> int:
    mounts = task(**more)["ContainerSpec"]["Mounts"]
    return next(mount["TmpfsOptions"]["SizeBytes"] for mount in mounts if mount["Target"] == "/dev/shm")


def test_a_task_has_its_slots_share_of_the_nodes_memory_without_the_reserve() -> None:
    assert limits() == {"MemoryBytes": 15 * GB, "NanoCPUs": 7_500_000_000, "Pids": PIDS}
    assert limits(slots=2)["MemoryBytes"] == 30 * GB


@given(st.integers(1 << 27, 1 << 40), st.integers(1, 16))
def test_tasks_on_all_slots_leave_the_reserve(memory_bytes: int, slots: int) -> None:
    on = dataclasses.replace(PC, memory_bytes=memory_bytes)
    together = slots * limits(on=on, of=slots)["MemoryBytes"]
    assert 0 < together <= tenants_memory_bytes(on, NodeReserve()) < memory_bytes


def test_an_administrator_says_how_much_a_slot_brings_but_not_more_than_there_is() -> None:
    settings = TaskSettings(image="i@sha256:a", memory_per_slot_bytes=4 * GB, pids=100)
    assert limits(settings=settings)["MemoryBytes"] == 4 * GB and limits(settings=settings)["Pids"] == 100
    greedy = TaskSettings(image="i@sha256:a", memory_per_slot_bytes=400 * GB)
    assert limits(settings=greedy)["MemoryBytes"] == 30 * GB


def test_shared_memory_is_at_most_half_of_the_tasks_memory_whatever_a_job_asks() -> None:
    assert shm_bytes() == 2 * GB
    assert shm_bytes(shm_bytes=1 << 50) == 15 * GB // 2


def test_a_node_that_does_not_tell_its_size_limits_processes_all_the_same() -> None:
    assert limits(on=dataclasses.replace(PC, memory_bytes=0, cpus=0.0)) == {"Pids": PIDS}


@pytest.mark.parametrize(
    ("limit", "count"),
    [("memory.max", "memory.events"), ("memory/memory.limit_in_bytes", "memory/memory.oom_control")],
)
def test_a_task_counts_what_the_kernel_killed_of_its_own(tmp_path: Path, limit: str, count: str) -> None:
    machine = tmp_path / "vmstat"
    machine.write_text("oom_kill 7\n")
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    (tmp_path / limit).write_text("16106127360\n")
    (tmp_path / count).write_text("oom 3\noom_kill 2\n")
    assert task_limits.limit_bytes(tmp_path) == 15 * GB
    assert task_limits.oom_kills(tmp_path, machine) == 2


@pytest.mark.parametrize(
    ("limit", "text"), [("memory.max", "max"), ("memory/memory.limit_in_bytes", str(2**63 - 4096))]
)
def test_without_a_limit_the_machine_counts(tmp_path: Path, limit: str, text: str) -> None:
    machine = tmp_path / "vmstat"
    machine.write_text("oom_kill 7\n")
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    (tmp_path / limit).write_text(text)
    assert task_limits.limit_bytes(tmp_path) is None
    assert task_limits.oom_kills(tmp_path, machine) == 7


def test_dedicated_managers_take_nothing_new_and_workers_do() -> None:
    engine = SwarmEngine(dedicated_managers=True, docker_url="tcp://127.0.0.1:9")
    assert engine.closed(node(1)) and not engine.closed(node(2))
    assert not SwarmEngine(docker_url="tcp://127.0.0.1:9").closed(node(1))
