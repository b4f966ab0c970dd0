"""The cells of docs/frameworks.md as written, on three ranks; and those of the example notebook."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from minicluster.capture.framework import find_framework, imports_of_payload
from minicluster.capture.payload import CellPayload
from minicluster.options import parse_cell_line
from minicluster.wire.training.framework import Framework

from ..conftest import Needs
from ..runtime.cluster import Cluster
from .cells import result_of

TREE = Path(__file__).resolve().parents[2]
PAGE = (TREE / "docs" / "frameworks.md").read_text()
CELLS = {
    name: (line, source)
    for name, line, source in re.findall(
        r"^## ([\w ]+)\n(?:(?!^## ).)*?```python\n%%distribute (.*?)\n(.*?)```", PAGE, re.M | re.S
    )
}
NEEDS = {"JAX": "optax", "Keras": "keras", "TensorFlow": "tensorflow", "Plain Python": "torch"}
FRAMEWORKS = {
    "JAX": Framework.JAX,
    "Keras": Framework.JAX,
    "TensorFlow": Framework.TENSORFLOW,
    "Plain Python": Framework.NONE,
}


def test_each_framework_of_the_table_has_a_cell() -> None:
    assert CELLS.keys() == NEEDS.keys() == FRAMEWORKS.keys()


@pytest.mark.parametrize("name", NEEDS)
def test_what_trains_in_a_cell_is_found(name: str) -> None:
    line, source = CELLS[name]
    options = parse_cell_line(line)
    modules = imports_of_payload(CellPayload(source, "Cell In[1]"))
    found = find_framework(modules, options.env, {}, options.framework)
    assert (found.framework, found.note) == (FRAMEWORKS[name], "")


@pytest.mark.parametrize("name", NEEDS)
async def test_the_cell_of_the_page_runs_on_all_ranks(cluster: Cluster, name: str, needs: Needs) -> None:
    needs(find_spec(NEEDS[name]), f"{NEEDS[name]} is not installed: ./test frameworks installs it")
    line, source = CELLS[name]
    options = parse_cell_line(line)
    run = await cluster.run(source, framework=FRAMEWORKS[name], env=dict(options.env), pull=("processes",))
    assert await result_of(run) == {"processes": 3}
    steps = [record.step for record in run.records() if record.kind == "log" and record.rank == 0]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 10


def notebook_cells() -> list[tuple[str, str]]:
    """The distributed cells of the example notebook: their lines and their texts."""
    cells = json.loads((TREE / "notebooks" / "frameworks.ipynb").read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    distributed = [text.partition("\n") for text in texts if text.startswith("%%distribute")]
    return [(line.removeprefix("%%distribute").strip(), source) for line, _, source in distributed]


@pytest.mark.parametrize("number", range(len(notebook_cells())))
async def test_the_example_notebooks_cells_run(cluster: Cluster, number: int, needs: Needs) -> None:
    line, source = notebook_cells()[number]
    options = parse_cell_line(line)
    modules = imports_of_payload(CellPayload(source, "Cell In[1]"))
    found = find_framework(modules, options.env, {}, options.framework)
    for module in modules & {"jax", "keras", "tensorflow"}:
        needs(find_spec(module), f"{module} is not installed: ./test frameworks installs it")
    run = await cluster.run(
        source, framework=found.framework or Framework.TORCH, env=dict(options.env), pull=("learned",)
    )
    assert await result_of(run)
