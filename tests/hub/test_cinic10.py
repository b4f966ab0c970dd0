"""The paper's experiment, notebooks/cinic10.ipynb, to its end, with the engine `local`."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor

from .. import experiment


@pytest.mark.full("minutes of training; tests/unit/cinic10 has its loader and its networks")
@pytest.mark.timeout(600)
async def test_the_experiment_runs_to_its_table(ada: Visitor, tree: Path, tmp_path: Path) -> None:
    experiment.draw(tmp_path / "data")
    async with open_kernel(ada, experiment.NAME) as kernel:
        cells = await experiment.run_all(kernel, tree, str(tmp_path / "data"))
        experiment.check(*await experiment.results(kernel), cells)


@pytest.mark.full("about an example's data alone")
async def test_data_that_are_not_there_are_told(ada: Visitor, tree: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(tree / "notebooks" / experiment.NAME, as_version=4)
    (tmp_path / "pictures").mkdir()
    async with open_kernel(ada, experiment.NAME) as kernel:
        for cell in [cell for cell in notebook.cells if cell.cell_type == "code"][:4]:
            await kernel.run(cell.source)
        (error,) = [
            output
            for output in await kernel.run(f"experiment({str(tmp_path)!r}, **PRESETS['small'])")
            if output.output_type == "error"
        ]
    assert error.ename == "WrongLayout"
    assert f"{tmp_path} has no folder train" in error.evalue and "pictures" in error.evalue
    assert f"{tmp_path}/{{train,valid,test}}/CLASS/*.png" in error.evalue
