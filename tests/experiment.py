"""The paper's experiment, notebooks/cinic10.ipynb, on a small folder with CINIC-10's layout."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from minicluster_hub.launch.kernel import KernelConnection

NAME = "cinic10.ipynb"


def draw(root: Path) -> None:
    """Write images of ten classes that differ in colour; some are grey, as in CINIC-10."""
    # The function's source is sent to other kernels, so it imports its modules itself.
    import numpy as np
    from PIL import Image

    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    chance = np.random.default_rng(0)
    for split, count in {"train": 3, "valid": 1, "test": 2}.items():
        for label, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                drawn = chance.integers(0, 128, (32, 32, 3)) + 12 * label
                image = Image.fromarray(drawn.astype(np.uint8)).convert("L" if number == 2 else "RGB")
                image.save(folder / f"cifar10-{split}-{10 * number + label}.png")


async def run_all(kernel: KernelConnection, tree: Path, data: str, options: str = "") -> list[NotebookNode]:
    """Run the notebook's cells in order on a small folder of images; return them with outputs.

    options: further options for the notebook's two jobs.
    """
    notebook = nbformat.read(tree / "notebooks" / NAME, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "parameters" in cells[0].metadata.tags
    for cell in cells:
        source = cell.source.replace("%%distribute", f"%%distribute {options}")
        cell.outputs = await kernel.run(source)
        errors = [output for output in cell.outputs if output.output_type == "error"]
        assert not errors, f"{cell.source}\n{errors[0].traceback}"
        if cell is cells[0]:
            await kernel.run(f"settings, data = PRESETS['small'], {data!r}")
    return cells


async def results(kernel: KernelConnection) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the results of the run on one node and of the run on three."""
    one, three = [ast.literal_eval(await kernel.evaluate(name)) for name in ("one", "three")]
    return one, three


def check(one: dict[str, Any], three: dict[str, Any], cells: list[NotebookNode]) -> None:
    """Check both runs, and the table and the plot at the end."""
    for run, ranks in ((one, 1), (three, 3)):
        assert run["ranks"] == ranks
        assert len(run["history"]) == 2
        assert run["history"][1]["loss"] != run["history"][0]["loss"]
        # Each of the 20 held-out images was evaluated once.
        assert run["accuracy"] * 20 == pytest.approx(round(run["accuracy"] * 20))
    assert (one["steps"], three["steps"]) == (4, 2)
    # A ring all-reduce sends 2 (n - 1) times the gradients per step; the counter must show at least this.
    least = 2 * 2 * three["gradient_bytes"] * three["steps"]
    assert three["gradient_bytes"] == 4 * 11_173_962
    assert all(least <= epoch["sent"] for epoch in three["history"])
    table = next(output.data["text/markdown"] for output in cells[-2].outputs if "data" in output)
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert lines[0][0] == "nodes"
    assert [line[0] for line in lines[2:]] == ["1", "3"]
    assert [line[5] for line in lines[2:]] == ["0 MB", f"{least / 1e6:.0f} MB"]
    assert any("image/png" in output.get("data", {}) for output in cells[-1].outputs)
