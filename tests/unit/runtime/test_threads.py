"""A rank's CPU threads: no rank uses cores of a neighbour's slots."""

from __future__ import annotations

import os

import pytest

from minicluster.runtime.rank.environment import fair_threads
from minicluster.wire import RunOrder

CORES = 8


def threads(environ: dict[str, str], **more: object) -> int:
    order = {"attempt": 1, "job_id": 1, "payload_sha256": "0" * 64, "first_rank": 0, "group_rank": 0}
    order |= {"local_world_size": 1, "world_size": 3, "group_world_size": 3, "master_port": 1}
    return fair_threads(RunOrder.model_validate({**order, "master_addr": "10.0.0.1", **more}), environ)


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)))


def test_a_task_has_the_part_of_the_cores_that_its_slots_are_of_its_node() -> None:
    assert threads({"MINICLUSTER_SLOTS": "0", "MINICLUSTER_NODE_SLOTS": "1"}) == 8
    assert threads({"MINICLUSTER_SLOTS": "3", "MINICLUSTER_NODE_SLOTS": "4"}) == 2
    assert threads({"MINICLUSTER_SLOTS": "1,2", "MINICLUSTER_NODE_SLOTS": "4"}, local_world_size=2) == 2
    assert threads({"MINICLUSTER_SLOTS": "0", "MINICLUSTER_NODE_SLOTS": "64"}) == 1


def test_half_a_gpu_goes_with_half_of_its_cores() -> None:
    half = {"MINICLUSTER_SLOTS": "0", "MINICLUSTER_GPU_SHARE": "0.5"}
    assert threads({**half, "MINICLUSTER_NODE_SLOTS": "2"}) == 2
    assert threads(half) == 4


def test_without_an_engines_word_all_cores_are_the_tasks() -> None:
    assert threads({}) == 8
    assert threads({}, local_world_size=3) == 2


def test_a_gang_on_one_machine_shares_it() -> None:
    assert threads({}, master_addr="127.0.0.1") == 2
