"""The paper's experiment on three real hosts: pushed once, the pictures are at /data on each."""

from __future__ import annotations

from pathlib import Path

from ... import experiment
from ..cluster import LabCluster
from ..people import People
from ..remains import check_nothing_left
from .pictures import with_pictures


async def test_one_node_against_three(cluster: LabCluster, people: People, tree: Path) -> None:
    async with people.at_work("ellen") as ellen, with_pictures(ellen) as kernel:
        cells = await experiment.run_all(kernel, tree, "/data/cinic10", "--data cinic10")
        experiment.check(*await experiment.results(kernel), cells)
    check_nothing_left(cluster)
