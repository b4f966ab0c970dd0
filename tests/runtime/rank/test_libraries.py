"""The cells of docs/libraries.md as written, on three ranks; skipped if a library is missing."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from minicluster.pickling.pickling import NotPicklable, dumps

from ..cluster import Cluster

PAGE = Path(__file__).resolve().parents[3] / "docs" / "libraries.md"
CELLS = dict(
    re.findall(r"^## (.*?)\n.*?```python\n%%distribute --nodes 3\n(.*?)```", PAGE.read_text(), re.M | re.S)
)
MODULES = {
    "Accelerate": "accelerate",
    "notebook_launcher": "accelerate",
    "Hugging Face Trainer": "transformers",
    "Lightning": "lightning",
}
EXPECTED = {
    "Accelerate": {"alike": True},
    "Hugging Face Trainer": {"steps": 4, "alike": True},
    "Lightning": {"steps": 4, "alike": True},
}
COMES_BACK = {
    "Accelerate": ("model", "optimizer"),
    "Hugging Face Trainer": ("model",),
    "Lightning": ("model",),
}


ALIKE = """
import torch.distributed as dist
weights = [None] * dist.get_world_size()
dist.all_gather_object(weights, [one.tolist() for one in model.parameters()])
alike = all(each == weights[0] for each in weights)
"""
"""Checks that ranks that start with different weights end with equal ones."""


def test_each_library_of_the_page_is_here() -> None:
    assert CELLS.keys() == MODULES.keys() | {"DeepSpeed"}, "DeepSpeed's compiles for minutes"


@pytest.mark.full("what runs in the gate is Accelerate's, in test_scripts")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("library", MODULES)
async def test_the_cell_of_the_page_runs_on_all_ranks(cluster: Cluster, library: str) -> None:
    if find_spec(MODULES[library]) is None:
        pytest.skip(f"{MODULES[library]} is not installed (the extra `libraries`)")
    expected = {"processes": 3, **EXPECTED.get(library, {})}
    trained = COMES_BACK.get(library, ())
    cell = CELLS[library] + (ALIKE if "alike" in expected else "")
    run = await cluster.run(cell, pull=(*expected, *trained))
    await run.over(500)
    result = await run.result()
    assert {name: result[name] for name in expected} == expected
    assert set(trained) <= result.keys(), run.left_behind()


def cases(cells: dict[str, str]) -> list[Any]:
    """Mark cases that import Lightning on three ranks for `./test full`."""
    full = pytest.mark.full("what runs in the gate is Accelerate's")
    return [pytest.param(name, marks=full if "lightning" in name else ()) for name in cells]


TOGETHER = {
    "accelerate": """
        from accelerate import PartialState
        processes = PartialState().num_processes
        """,
    "accelerate's both": """
        from accelerate import Accelerator, PartialState
        processes = min(PartialState().num_processes, Accelerator().num_processes)
        """,
    "lightning's fabric": """
        import lightning
        fabric = lightning.Fabric()
        fabric.launch()
        processes = fabric.world_size
        """,
    "lightning with devices alone": """
        import lightning
        processes = lightning.Trainer(devices=1, accelerator="cpu", logger=False).world_size
        """,
    "pytorch_lightning": """
        import pytorch_lightning
        processes = pytorch_lightning.Trainer(logger=False).world_size
        """,
}


@pytest.mark.parametrize("library", cases(TOGETHER))
async def test_what_looks_at_no_gpu_and_no_argument_sees_all_ranks(cluster: Cluster, library: str) -> None:
    pytest.importorskip(library.partition("'")[0].partition(" ")[0], exc_type=ImportError)
    run = await cluster.run(TOGETHER[library], pull=("processes",))
    assert await run.result() == {"processes": 3}


LIGHTNING = """
    import torch
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel
    Trainer(strategy="ddp_notebook", max_steps=1, logger=False, enable_checkpointing=False).fit(BoringModel())
    """
LAUNCHERS = {
    "accelerate": "import accelerate\naccelerate.notebook_launcher(print, num_processes=3)",
    "accelerate with two": "from accelerate import notebook_launcher as go\ngo(print, ('a',), 2)",
    "accelerate without a number": "from accelerate import notebook_launcher as go\ngo(print)",
    "accelerate to debug": "from accelerate.launchers import debug_launcher as go\ngo(print)",
    "lightning": LIGHTNING,
    "lightning spawning": LIGHTNING.replace("notebook", "spawn"),
}


@pytest.mark.parametrize("library", cases(LAUNCHERS))
async def test_what_starts_processes_in_a_rank_is_refused_with_what_to_do(
    cluster: Cluster, library: str
) -> None:
    pytest.importorskip(library.partition(" ")[0], exc_type=ImportError)
    run = await cluster.run(LAUNCHERS[library])
    error = await run.culprit()
    assert error.message.startswith("RanksAreThere"), error
    assert error.hint.startswith("Leave strategy= out" if "light" in library else "Call print() itself")


@pytest.mark.full("what runs in the gate is Accelerate's")
async def test_variables_of_the_persons_own_win(cluster: Cluster) -> None:
    pytest.importorskip("lightning", exc_type=ImportError)
    own = {"PL_TRAINER_NUM_NODES": "1", "PL_TRAINER_DEVICES": "1"}
    run = await cluster.run(TOGETHER["lightning with devices alone"], env=own, pull=("processes",))
    assert await run.result() == {"processes": 1}


MADE_EARLIER = {
    "accelerate": "from accelerate import Accelerator\nit = Accelerator(cpu=True)",
    "transformers": "from transformers import TrainingArguments as A\nit = A('/tmp/none', use_cpu=True)",
    "lightning": "from lightning import Trainer\nit = Trainer(accelerator='cpu', logger=False)",
    "lightning.fabric": "import lightning\nit = lightning.Fabric(accelerator='cpu')",
    "pytorch_lightning": "from pytorch_lightning import Trainer\nit = Trainer(accelerator='cpu')",
}


@pytest.mark.parametrize("library", MADE_EARLIER)
def test_what_an_earlier_cell_made_is_refused_with_the_line_to_move(library: str) -> None:
    pytest.importorskip(library.partition(".")[0], exc_type=ImportError)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(MADE_EARLIER[library], names)
    line = f"`it = {type(names['it']).__name__}(...)`"
    with pytest.raises(NotPicklable) as caught:
        dumps({"it": names["it"]}, names, "The names")
    assert f"move the line that makes it into the cell: {line}" in caught.value.message
    with pytest.raises(NotPicklable) as caught:
        dumps({"all": {"things": [names["it"]]}}, names, "The names")
    assert "holds all['things'][0]" in caught.value.message


def test_what_accelerate_wraps_comes_as_it_was() -> None:
    import torch
    from accelerate import Accelerator

    from minicluster.pickling.pickling import loads

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    wrapped = Accelerator(cpu=True).prepare(optimizer, scheduler)
    assert not isinstance(wrapped[0], torch.optim.SGD)
    back = loads(dumps({"both": wrapped, "model": model}, {}, "The names"), {})
    assert type(back["both"][0]) is torch.optim.SGD
    assert back["both"][0].param_groups[0]["params"][0] is back["model"].weight
    assert type(back["both"][1]) is torch.optim.lr_scheduler.StepLR
