"""The example notebooks as files: without outputs, and in each new home with their modules."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from minicluster_spawner.homes import examples_dir, make_home

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))
NAMES = {
    *("quickstart", "fast_hands", "large_models", "frameworks", "serving"),
    *("cinic10", "schedulearn", "placement", "fault_tolerance", "storm_images"),
}


def content(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_they_are_all_there_and_a_new_home_has_them_with_their_modules(tmp_path: Path) -> None:
    assert {path.stem for path in NOTEBOOKS} >= NAMES
    make_home(tmp_path, examples_dir())
    given = {path.name for path in tmp_path.iterdir()}
    modules = {"cinic10_data.py", "policy_trial.py", "storm_data.py"}
    assert given >= {path.name for path in NOTEBOOKS} | modules


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs_and_the_metadata_of_all(path: Path) -> None:
    notebook = content(path)
    assert notebook["metadata"] == content(NOTEBOOKS[0])["metadata"]
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len({*ids}) == len(ids)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_only_what_everybody_may(path: Path) -> None:
    """Our package by its public name, and our modules only beside the notebook."""
    for cell in content(path)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        lines = [line for line in source.splitlines() if not line.lstrip().startswith("%")]
        python = TransformerManager().transform_cell("\n".join(lines) or "pass")
        for node in ast.walk(ast.parse(python)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            private = [name for name in names if name.startswith(("minicluster.", "minicluster_"))]
            assert not private, f"{path.name}: {private}"
