"""Runs the commands of the documents in a notebook of a hub started by ./run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from nbformat import NotebookNode

from minicluster_hub.launch.kernel import KernelConnection, open_kernel
from minicluster_hub.launch.visitor import Visitor

from ..documents import Block, blocks
from .clusters import RunningCluster


@pytest_asyncio.fixture(loop_scope="session")
async def newcomer(tmp_path: Path) -> AsyncIterator[Visitor]:
    """Somebody on a new hub: her first job is job 1."""
    cluster = RunningCluster(tmp_path / "data")
    try:
        async with Visitor(cluster.url, "ada") as visitor:
            await visitor.log_in(cluster.add_user("ada"))
            await visitor.start_server()
            yield visitor
    finally:
        cluster.end()
        cluster.kill()


async def typed(kernel: KernelConnection, block: Block) -> list[NotebookNode]:
    outputs = await kernel.run(block.cell)
    for output in outputs:
        assert output.output_type != "error", (block.source, output)
        assert output.get("name") != "stderr", (block.source, output)
        assert '"error"' not in output.get("text", ""), (block.source, output)
    return outputs


async def test_the_readmes_first_cells_run_as_they_stand_there(ada: Visitor, tree: Path) -> None:
    readme = [block for block in blocks((tree / "README.md").read_text()) if block.kind == "python"]
    assert len(readme) == 3
    async with open_kernel(ada, "readme.ipynb") as kernel:
        for block in readme:
            await typed(kernel, block)
        assert (
            float(await kernel.evaluate("float((model(points).argmax(dim=1) == labels).float().mean())"))
            > 0.9
        )


@pytest.mark.full("a minute of cells; the gate has the first ones, of the README")
async def test_every_block_of_the_guide_runs_in_its_order(
    newcomer: Visitor, tree: Path, tmp_path: Path
) -> None:
    guide = blocks((tree / "docs" / "guide.md").read_text())
    assert len(guide) >= 11
    async with open_kernel(newcomer, "guide.ipynb") as kernel:
        for block in guide:
            if not block.reason:
                await typed(kernel, block)
        assert await kernel.evaluate("type(model).__name__") == "'Sequential'"
    assert (tmp_path / "data" / "homes" / "ada" / "results" / "digits.pt").is_file()


async def test_names_of_start_up_files_travel_and_those_of_ipython_stay(ada: Visitor) -> None:
    async with open_kernel(ada, "names.ipynb") as kernel:
        assert await kernel.evaluate("mc.__name__") == "'minicluster'"
        outputs = await kernel.run("%%distribute --nodes 2\n(mc.world_size(), 'In' in globals())")
        assert outputs[-1].data["text/plain"] == "(2, False)"
