"""The paper's experiment, notebooks/cinic10.ipynb, with the engine `local`: what it says of wrong data.

test_notebooks.py runs it to its end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor

from .. import notebooks


@pytest.mark.full("about an example's data alone")
async def test_data_that_are_not_there_are_told(ada: Visitor, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    async with open_kernel(ada, notebooks.EXPERIMENT) as kernel:
        for cell in notebooks.code_cells(tree, notebooks.EXPERIMENT):
            if not cell.source.startswith("%%distribute") and "%distribute data push" not in cell.source:
                await kernel.run(cell.source)
            if cell.source.startswith("def experiment"):
                break
        (error,) = [
            output
            for output in await kernel.run(f"experiment({str(tmp_path)!r}, **PRESETS['small'])")
            if output.output_type == "error"
        ]
    assert error.ename == "WrongLayout"
    assert f"{tmp_path} has no folder train" in error.evalue and "pictures" in error.evalue
    assert f"{tmp_path}/{{train,valid,test}}/CLASS/*.png" in error.evalue
