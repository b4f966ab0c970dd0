"""Random numbers differ between ranks and cells unless the cell sets a seed."""

from __future__ import annotations

import random
from typing import Any

import torch

from ..cluster import Cluster

DRAW = """
import numpy, random, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, RandomSampler

class Noise(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        return torch.rand(1).item(), random.random(), numpy.random.rand()

mine = {
    "torch": torch.rand(1).item(),
    "numpy": numpy.random.rand(),
    "numpy generator": numpy.random.default_rng().random(),
    "python": random.random(),
    "order": tuple(RandomSampler(range(1000))),
    "weights": torch.nn.Linear(3, 1).weight.tolist(),
    "seed": torch.initial_seed(),
    "generator": torch.default_generator.initial_seed(),
    "loader": tuple(batch[0].item() for batch in DataLoader(Noise(), batch_size=1, num_workers=2)),
    "loader, python": tuple(batch[1].item() for batch in DataLoader(Noise(), batch_size=1, num_workers=2)),
    "loader, numpy": tuple(batch[2].item() for batch in DataLoader(Noise(), batch_size=1, num_workers=2)),
}
drawn = [None] * dist.get_world_size()
dist.all_gather_object(drawn, mine)
"""
SEEDED = """
import numpy, random, torch, torch.distributed as dist
torch.manual_seed(7); numpy.random.seed(7); random.seed(7)
drawn = [None] * dist.get_world_size()
dist.all_gather_object(drawn, (torch.rand(1).item(), numpy.random.rand(), random.random()))
"""


async def _drawn(cluster: Cluster, source: str, **more: Any) -> list[Any]:
    run = await cluster.run(source, nodes=2, ranks_per_node=2, pull=("drawn",), **more)
    return (await run.result())["drawn"]


async def test_each_rank_of_each_cell_of_a_warm_gang_has_its_own(cluster: Cluster) -> None:
    drawn = [*await _drawn(cluster, DRAW), *await _drawn(cluster, DRAW)]
    assert len(drawn) == 8
    for name in drawn[0]:
        values = [repr(mine[name]) for mine in drawn]
        assert len(set(values)) == 8, f"{name}: {values}"


async def test_a_cell_that_seeds_has_the_same_each_time(cluster: Cluster) -> None:
    drawn = [*await _drawn(cluster, SEEDED), *await _drawn(cluster, SEEDED)]
    torch.manual_seed(7)
    assert set(drawn) == {drawn[0]}
    assert drawn[0][0] == torch.rand(1).item()
    assert drawn[0][2] == random.Random(7).random()


async def test_a_jobs_seed_draws_the_same_each_time_and_another_number_on_each_rank(cluster: Cluster) -> None:
    drawn = await _drawn(cluster, DRAW, seed=(1 << 32) - 2)
    assert len({mine["python"] for mine in drawn}) == 4
    assert [mine["seed"] for mine in drawn] == [(1 << 32) - 2, (1 << 32) - 1, 0, 1]
    # NumPy's new generators start from the system's entropy, whatever the seed is.
    again = await _drawn(cluster, DRAW, seed=(1 << 32) - 2)
    for one in (*drawn, *again):
        del one["numpy generator"]
    assert drawn == again


async def test_generators_of_the_notebook_stay_as_they_are(cluster: Cluster) -> None:
    """A seed that the user set for all ranks is respected."""
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    python = random.Random(5)
    source = """
    import torch, torch.distributed as dist
    drawn = [None] * dist.get_world_size()
    dist.all_gather_object(drawn, (torch.rand(1, generator=generator).item(), python.random()))
    """
    drawn = await _drawn(cluster, source, names={"generator": generator, "python": python})
    assert set(drawn) == {(torch.rand(1, generator=generator).item(), python.random())}
