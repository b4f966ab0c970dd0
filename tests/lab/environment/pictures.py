"""The paper's experiment for a user of the lab, on a small data set with CINIC-10's layout."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from minicluster_hub.launch.kernel import KernelConnection

from ... import experiment
from ..cluster import Person
from ..people import text


async def run_experiment(person: Person, tree: Path) -> None:
    """Run the experiment's notebook, once on one node and once on three, and check the results."""
    async with _with_pictures(person) as kernel:
        cells = await experiment.run_all(kernel, tree, "/data/cinic10", "--data cinic10")
        experiment.check(*await experiment.results(kernel), cells)


@asynccontextmanager
async def _with_pictures(person: Person) -> AsyncIterator[KernelConnection]:
    """Yield a kernel of the experiment's notebook, while `cinic10` is a small data set with that layout."""
    async with person.kernel(experiment.NAME) as kernel:
        source = inspect.getsource(experiment.draw)
        text(await kernel.run(f"from pathlib import Path\n{source}\ndraw(Path.home() / 'pictures')"))
        text(await kernel.run("%distribute data push ~/pictures --name cinic10"))
        try:
            yield kernel
        finally:
            text(await kernel.run("%distribute data rm cinic10"))
            text(await kernel.run("import shutil; shutil.rmtree(Path.home() / 'pictures')"))
