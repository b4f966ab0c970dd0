"""Ranks' working folders, and hints about missing files, names and keyboard input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minicluster.capture.notebook_folder import NotebookFolder
from minicluster.capture.payload import pack

from ..cluster import Cluster


def elsewhere(folder: Path, **stayed: str) -> NotebookFolder:
    """Return a notebook's folder as if on another machine: the same path with another mark."""
    return replace(NotebookFolder.here(folder, stayed), marks=("another machine",))


async def test_ranks_run_in_the_notebooks_folder_where_they_see_it(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    source = "import os\nread = open('data.csv').read()\nhere = os.getcwd()"
    run = await cluster.run(source, nodes=1, home=NotebookFolder.here(tmp_path, {}))
    assert await run.result() | {"os": None} == {"read": "1,2", "here": str(tmp_path), "os": None}


@pytest.mark.parametrize("name", ["data.csv", "./conf/deep.json", "/no/notebook/data.csv"])
async def test_a_file_beside_a_notebook_that_ranks_do_not_see_is_told(cluster: Cluster, name: str) -> None:
    home = NotebookFolder("/no/notebook", ("another machine",), ("conf", "data.csv"))
    error = await (await cluster.run(f"open({name!r})", nodes=1, home=home)).culprit()
    file = name.removeprefix("./").removeprefix("/no/notebook/")
    assert f"{file} lies beside the notebook" in error.hint
    assert f"--with {file}" in error.hint


async def test_a_file_that_is_nowhere_is_told_with_the_ranks_folder(cluster: Cluster, tmp_path: Path) -> None:
    error = await (await cluster.run("open('no.csv')", nodes=1, home=elsewhere(tmp_path))).culprit()
    assert f"ranks run in {Path.cwd()}, " in error.hint


@pytest.mark.parametrize("source", ["x = 1\nbreakpoint()\nx = 2", "input('go on? ')"])
async def test_who_waits_for_a_keyboard_is_told_that_there_is_none(cluster: Cluster, source: str) -> None:
    error = await (await cluster.run(source, nodes=1)).culprit()
    assert error.hint.startswith("Nobody can type into a rank")


async def test_a_name_that_stayed_on_earlier_ranks_is_told(cluster: Cluster, tmp_path: Path) -> None:
    stayed = "stayed on the ranks of an earlier cell (it holds a lock)."
    home = elsewhere(tmp_path, model=stayed)
    error = await (await cluster.run("print(model)", nodes=1, home=home)).culprit()
    assert error.hint == f"`model` {stayed}"
    other = await (await cluster.run("print(modell)", nodes=1, home=home)).culprit()
    assert other.hint == ""


SPAWN = """
    import multiprocessing, os, torch
    from dataclasses import dataclass

    @dataclass
    class Found:
        rank: int
        folder: str

    def scale(x):
        return 10 * x

    def work(rank, queue):
        queue.put(Found(scale(rank), os.getcwd()))

    queue = multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(work, (queue,), nprocs=2)
    found = [queue.get() for _ in range(2)]
    ranks = sorted(one.rank for one in found if isinstance(one, Found))
    same = {one.folder for one in found} == {os.getcwd()}
    """


async def test_processes_that_a_cell_spawns_know_its_functions_and_its_folder(
    cluster: Cluster,
) -> None:
    bundle = pack({"kind": "bundle", "runnable": []}, {"settings.txt": b"deep"})
    run = await cluster.run(SPAWN, nodes=1, bundle=bundle, pull=("ranks", "same"))
    assert await run.result() == {"ranks": [0, 10], "same": True}


@pytest.mark.full("in the gate a cell spawns them itself")
async def test_a_loader_with_spawned_processes(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Squares(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return torch.tensor(index ** 2)
        loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
        seen = [batch.tolist() for batch in loader]
        """,
        nodes=1,
        pull=("seen",),
    )
    assert (await run.result())["seen"] == [[0, 1, 4, 9], [16, 25, 36, 49]]


@pytest.mark.full("in the gate they know its functions")
async def test_processes_that_a_cell_spawns_make_a_group_of_their_own(cluster: Cluster) -> None:
    """The example of PyTorch's own tutorial: MASTER_ADDR and MASTER_PORT are set in the process."""
    run = await cluster.run(
        """
        import os, torch, torch.distributed as dist
        def work(rank, size):
            os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29719"
            dist.init_process_group("gloo", rank=rank, world_size=size)
            total = torch.ones(1)
            dist.all_reduce(total)
            print(f"total {total.item()}", flush=True)
            dist.destroy_process_group()
        torch.multiprocessing.spawn(work, (2,), nprocs=2)
        """,
        nodes=1,
    )
    await run.over(60)
    assert run.attempt.text(0).count("total 2.0") == 2, run.attempt.text(0)
