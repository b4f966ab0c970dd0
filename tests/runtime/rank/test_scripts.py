"""Scripts for other launchers, unchanged in a cell."""

from __future__ import annotations

from itertools import chain

import pytest

from ..cluster import Cluster

TORCHRUN_SCRIPT = """
    import os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    def main():
        dist.init_process_group("gloo")
        rank = int(os.environ["LOCAL_RANK"])
        model = DDP(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
        dist.destroy_process_group()

    if __name__ == "__main__":
        main()
        finished = True
    """


async def test_a_script_for_torchrun(cluster: Cluster) -> None:
    run = await cluster.run(TORCHRUN_SCRIPT)
    assert (await run.result())["finished"] is True


async def test_a_group_with_other_wishes_is_a_new_one(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        from datetime import timedelta
        import torch, torch.distributed as dist
        given = dist.group.WORLD
        dist.init_process_group("gloo", timeout=timedelta(seconds=20))
        new = dist.group.WORLD is not given
        total = torch.ones(1)
        dist.all_reduce(total)
        total = total.item()
        del given
        """
    )
    result = await run.result()
    assert (result["new"], result["total"]) == (True, 3.0)


@pytest.mark.parametrize(
    "meeting_point",
    [
        "'tcp://localhost:29517', rank=rank, world_size=3",
        "'tcp://127.0.0.1:29517'",
        "f'tcp://127.0.0.1:29517?rank={rank}&world_size=3'",
        "'file:///tmp/no-folder-of-minicluster/meeting', rank=rank, world_size=3",
    ],
)
async def test_a_meeting_point_that_a_script_names_is_the_jobs_own(
    cluster: Cluster, meeting_point: str
) -> None:
    """No store listens at that address, and on several nodes localhost differs."""
    run = await cluster.run(
        f"""
        import os, torch, torch.distributed as dist
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", {meeting_point})
        total = torch.ones(1)
        dist.all_reduce(total)
        total = total.item()
        """
    )
    await run.over(20)
    assert (await run.result())["total"] == 3.0


async def test_a_group_of_fewer_ranks_meets_at_a_store_of_its_own(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, torch, torch.distributed as dist
        place = {"rank": int(os.environ["LOCAL_RANK"]), "world_size": int(os.environ["LOCAL_WORLD_SIZE"])}
        port = 29600 + int(os.environ["GROUP_RANK"])
        dist.init_process_group("gloo", f"tcp://localhost:{port}", **place)
        total = torch.ones(1)
        dist.all_reduce(total)
        total = total.item()
        """,
        nodes=2,
        ranks_per_node=(2, 1),
    )
    await run.over(20)
    assert (await run.result())["total"] == 2.0


async def test_groups_can_be_made_and_destroyed_again_and_again(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch, torch.distributed as dist
        totals = []
        for _ in range(4):
            dist.init_process_group()
            total = torch.ones(1)
            dist.all_reduce(total)
            totals.append(total.item())
            dist.destroy_process_group()
        """
    )
    assert (await run.result())["totals"] == [3.0] * 4


async def test_making_a_group_twice_is_torchs_own_error(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        dist.init_process_group("gloo")
        """,
        nodes=1,
    )
    error = await run.culprit()
    assert "twice" in error.message
    assert "minicluster/runtime" not in error.traceback


async def test_destroying_the_group_while_a_model_holds_it_does_not_hang(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import gc
        import torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel as DDP
        model = DDP(torch.nn.Linear(4, 1))
        model(torch.ones(2, 4)).mean().backward()
        dist.destroy_process_group()
        del model
        gc.collect()
        left = True
        """
    )
    assert (await run.result())["left"] is True


async def test_accelerate(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch
        from accelerate import Accelerator
        from torch.utils.data import DataLoader, TensorDataset

        accelerator = Accelerator()
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for (batch,) in loader:
            loss = model(batch).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        processes = accelerator.num_processes
        steps = len(loader)
        accelerator.end_training();
        """,
        pull=("processes", "steps"),
    )
    assert await run.result() == {"processes": 3, "steps": 2}


async def test_the_helpers_of_minicluster(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch, torch.distributed as dist
        from torch.utils.data import DataLoader, TensorDataset
        import minicluster as mc

        data = TensorDataset(torch.arange(30.0).reshape(30, 1))
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.Adam(model.parameters())
        loader = DataLoader(data, batch_size=5, shuffle=True)
        model, optimizer, loader = mc.prepare(model, optimizer, loader)
        epochs = []
        for epoch in range(2):
            seen = []
            for (batch,) in loader:
                optimizer.zero_grad()
                model(batch.to(mc.device())).mean().backward()
                optimizer.step()
                seen += batch.flatten().tolist()
            epochs.append(seen)
        everyone = [None] * mc.world_size()
        dist.all_gather_object(everyone, epochs)
        place = (mc.rank(), mc.local_rank(), mc.world_size(), str(mc.device()))
        """,
        pull=("everyone", "place"),
    )
    result = await run.result()
    first, second = ([ranks[epoch] for ranks in result["everyone"]] for epoch in (0, 1))
    for shares in (first, second):
        assert sorted(chain.from_iterable(shares)) == [float(number) for number in range(30)]
    assert first != second
    assert result["place"][:3] == (0, 0, 3)


async def test_a_script_knows_its_file_its_arguments_and_what_lies_beside_it(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import sys
        from pathlib import Path
        from beside import answer
        here = Path(__file__)
        seen = (here.name, sys.argv, Path(sys.path[0]) == here.parent, answer)
        """,
        script="train.py",
        arguments=("--lr", "1"),
        modules={"train.py": b"", "beside.py": b"answer = 42"},
        pull=("seen",),
    )
    assert (await run.result())["seen"] == ("train.py", ["train.py", "--lr", "1"], True, 42)
