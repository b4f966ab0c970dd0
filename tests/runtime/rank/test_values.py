"""Values that differ between ranks are reported, and --gather returns all of them."""

from __future__ import annotations

import torch

from ... import messages
from ..cluster import Cluster

DIFFERS = """
import os, torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
rank = int(os.environ["RANK"])
model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
optimizer = torch.optim.Adam(model.parameters())
batch = torch.full((8, 4), float(rank)) + torch.arange(8.0)[:, None]
model(batch).square().sum().backward()
optimizer.step()
same = {"a": [1, 2.0], "b": {"x", "y", "z"}, "t": torch.ones(3)}
same["itself"] = same
if rank == 0:
    best = 1
"""


async def test_names_that_differ_are_named_and_no_others(cluster: Cluster) -> None:
    run = await cluster.run(DIFFERS, nodes=2, ranks_per_node=(1, 2))
    result = await run.result()
    assert result["rank"] == 0
    assert run.notes() == (f"`rank`, `batch` differ {messages.RANKS_DIFFER.format(names='rank,batch')}",)


async def test_gather_brings_a_list_with_each_ranks_value(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, torch
        rank = int(os.environ["RANK"])
        losses = [rank / 2] * 3
        model = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(model.weight, rank)
        big = torch.full((3 << 20,), rank)
        """,
        nodes=2,
        ranks_per_node=(1, 2),
        gather=("losses", "model", "big"),
        pull=("rank",),
    )
    result = await run.result()
    assert result["losses"] == [[0.0] * 3, [0.5] * 3, [1.0] * 3]
    assert [model.weight[0, 0].item() for model in result["model"]] == [0, 1, 2]
    assert all(torch.equal(it, torch.full((3 << 20,), rank)) for rank, it in enumerate(result["big"]))
    assert run.notes() == (f"`rank` differs {messages.RANKS_DIFFER.format(names='rank')}",)


async def test_what_cannot_be_gathered_is_named_with_its_rank_and_the_reason(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, threading
        rank = int(os.environ["RANK"])
        if rank:
            made = rank
        value = threading.Lock() if rank == 1 else rank
        """,
        nodes=3,
        gather=("made", "value", "absent"),
        pull=(),
    )
    result = await run.result()
    assert result == {"made": [None, 1, 2], "value": [0, None, 2]}
    lines = run.notes()
    assert len(lines) == 3
    assert "rank 0's `made` is missing" in lines[0] and "no such name" in lines[0]
    assert "rank 1's `value` is missing" in lines[1]
    assert "a lock belongs to one process" in lines[1]
    assert "no rank gives `absent`" in lines[2] and "no such name" in lines[2]


async def test_what_only_other_ranks_made_is_told(cluster: Cluster) -> None:
    run = await cluster.run("import os\nif os.environ['RANK'] == '1':\n    made = 1", nodes=2)
    assert "made" not in await run.result()
    assert run.notes() == (
        "`made` was made or changed on other ranks than rank 0 only, and did not come back "
        "(--gather made brings all)",
    )


async def test_a_rank_that_says_nothing_is_named_and_the_result_comes(cluster: Cluster) -> None:
    run = await cluster.run("import os\nx = 1\nif os.environ['RANK'] == '1':\n    os._exit(0)", nodes=2)
    assert (await run.result())["x"] == 1
    assert run.notes() == (
        "Values were not compared with those of all ranks: rank 1 had not come to the cell's end 3 s "
        "after rank 0.",
    )


async def test_one_rank_gathers_a_list_of_one(cluster: Cluster) -> None:
    run = await cluster.run("x = 5", nodes=1, gather=("x",))
    assert (await run.result())["x"] == [5]
