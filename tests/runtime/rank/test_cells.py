"""Successful cells: their environment, and what they return."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ..cluster import Cluster


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(1, 1), (2, 1), (3, 1), (1, 3), (2, (2, 1))])
async def test_all_ranks_meet_in_an_all_reduce(
    cluster: Cluster, nodes: int, ranks_per_node: int | tuple[int, ...]
) -> None:
    run = await cluster.run(
        """
        import torch, torch.distributed as dist
        total = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(total)
        print("rank", dist.get_rank(), "of", dist.get_world_size())
        total
        """,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
    )
    result = await run.result()
    size = nodes * ranks_per_node if isinstance(ranks_per_node, int) else sum(ranks_per_node)
    assert result["total"].item() == result["_"].item() == size * (size + 1) / 2
    assert [run.attempt.text(rank) for rank in range(size)] == [
        f"rank {rank} of {size}\n" for rank in range(size)
    ]


async def test_a_step_of_ddp_leaves_the_same_weights_everywhere(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        torch.manual_seed(dist.get_rank())
        model = DistributedDataParallel(torch.nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        sums = [torch.zeros(()) for _ in range(dist.get_world_size())]
        dist.all_gather(sums, model.module.weight.detach().sum())
        """
    )
    result = await run.result()
    assert torch.equal(result["sums"][0], result["sums"][1])
    assert torch.equal(result["sums"][0], result["sums"][2])
    assert isinstance(result["model"], torch.nn.Linear)


async def test_names_travel_there_and_only_the_wished_ones_back(cluster: Cluster) -> None:
    run = await cluster.run(
        "made = given * 2\nother = 1\nmade", nodes=1, names={"given": 21}, pull=("made", "absent")
    )
    result = await run.result()
    assert result == {"made": 42, "_": 42}


async def test_sources_beside_the_notebook_can_be_imported(cluster: Cluster) -> None:
    modules = {"nearby/__init__.py": b"", "nearby/numbers.py": b"answer = 42\n"}
    run = await cluster.run("from nearby.numbers import answer", nodes=1, ranks_per_node=2, modules=modules)
    assert (await run.result())["answer"] == 42


async def test_the_environment_is_that_of_torchrun(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, sys
        env = dict(os.environ)
        argv, name = sys.argv, __name__
        """,
        nodes=2,
        env={"MINE": "yes", "RANK": "17"},
    )
    result = await run.result()
    expected = {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "2", "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo", "MINE": "yes",
    }  # fmt: skip
    assert {name: result["env"].get(name) for name in expected} == expected
    assert int(result["env"]["OMP_NUM_THREADS"]) >= 1
    assert "MINICLUSTER_TOKEN_FILE" not in result["env"]
    assert (result["argv"], result["name"]) == (["<cell 1>"], "__main__")


async def test_functions_of_the_cell_pickle_as_those_of_a_notebook(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import inspect
        factor = 3
        def times(x):
            return factor * x
        source = inspect.getsource(times)
        """,
        nodes=1,
    )
    result = await run.result()
    assert result["source"] == "def times(x):\n    return factor * x\n"
    assert result["times"].__module__ == "__main__"


def notebooks_function() -> Any:
    """Return a function that is pickled by value, like one defined in a notebook."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("def helper(x): return x + 1", space)
    return space["helper"]


@pytest.mark.parametrize("python", ["3.9.1", "3.99.0"])
async def test_a_notebooks_code_of_another_python_ends_the_cell_in_words(
    cluster: Cluster, python: str
) -> None:
    run = await cluster.run(
        "helper(1)", nodes=1, names={"helper": notebooks_function()}, versions={"python": python}
    )
    error = await run.culprit()
    assert f"code of Python {python}" in error.message
    assert "inside this cell" in error.message + error.hint


async def test_a_notebook_of_another_python_and_without_torch_gets_what_it_can_open(cluster: Cluster) -> None:
    source = """
    import torch
    def made(): return 1
    class Made:
        def one(self): return 1
    tensor, number, thing, where = torch.ones(2), given + 1, Made(), {"deep": [torch.ones(1)]}
    """
    run = await cluster.run(source, nodes=1, names={"given": 1}, versions={"python": "3.9.1", "torch": ""})
    assert set(await run.result()) == {"torch", "number"}
    left = {item.name: item.reason for item in run.left_behind()}
    assert set(left) == {"made", "Made", "tensor", "thing", "where"}
    assert "Python 3.9" in left["made"]
    assert "needs torch" in left["tensor"]
    assert "where['deep'][0]" in left["where"]


async def test_sys_exit_with_success_is_a_success(cluster: Cluster) -> None:
    run = await cluster.run("import sys\nreached = 1\nsys.exit()", nodes=1)
    assert (await run.result())["reached"] == 1


async def test_what_the_cell_starts_at_exit_is_waited_for(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import atexit, threading, time
        atexit.register(print, "goodbye")
        threading.Thread(target=lambda: (time.sleep(0.3), print("thread done"))).start()
        """,
        nodes=1,
    )
    await run.result()
    assert run.attempt.text(0) == "thread done\ngoodbye\n"
