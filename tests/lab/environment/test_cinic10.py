"""The paper's experiment on nodes with GPUs; test_second_cluster runs it without GPUs."""

from __future__ import annotations

from pathlib import Path

from ..cluster import LabCluster
from ..people import People
from ..remains import check_nothing_left
from .pictures import run_experiment


async def test_one_node_two_and_three(cluster: LabCluster, people: People, tree: Path) -> None:
    async with people.at_work("ellen") as ellen:
        await run_experiment(ellen, tree)
    check_nothing_left(cluster)
