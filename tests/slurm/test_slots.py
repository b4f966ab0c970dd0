"""Which slots a gang has: GPUs by their numbers, as Slurm grants them."""

from __future__ import annotations

from pathlib import Path

from minicluster_hub.engines.slurm.engine import SlurmEngine

from .daemons import GPUS, NODES, SlurmDaemons
from .requests import gangs


async def test_slots_on_any_nodes_are_those_that_slurm_gives(slurm: SlurmDaemons, tmp_path: Path) -> None:
    engine = SlurmEngine(data_dir=str(tmp_path), tmp_dir=str(tmp_path))
    async with gangs(slurm, engine) as made:
        first = await made.granted(1, "ada", GPUS + 1, one_per_node=False)
        second = await made.granted(2, "bob", GPUS * len(NODES) - GPUS - 1, one_per_node=False)
    slots = [(place.node, slot) for place in (*first, *second) for slot in place.slots]
    assert sum(len(place.slots) for place in first) == GPUS + 1 and len(first) > 1
    assert sorted(slots) == [(node, slot) for node in NODES for slot in range(GPUS)]
