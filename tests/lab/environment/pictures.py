"""The paper's experiment for a user of the lab, on a few digits in CINIC-10's layout."""

from __future__ import annotations

from pathlib import Path

from ... import notebooks
from ..cluster import Person
from ..people import text


async def run_experiment(person: Person, tree: Path) -> None:
    """Run the experiment's notebook, on one node, two and three, and check the results."""
    async with person.kernel(notebooks.EXPERIMENT) as kernel:
        try:
            cells = await notebooks.run_all(kernel, tree, notebooks.EXPERIMENT, notebooks.FEW_PICTURES)
            await notebooks.check_experiment(kernel, cells)
        finally:
            text(await kernel.run("%distribute data rm digits32"))
            text(await kernel.run("import shutil; shutil.rmtree('digits32')"))
