"""A small tree of CINIC-10's layout as a data set of a user, as long as a test needs it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from minicluster_hub.launch.kernel import KernelConnection

from ... import experiment
from ..cluster import Person
from ..people import text


@asynccontextmanager
async def with_pictures(person: Person) -> AsyncIterator[KernelConnection]:
    """A kernel of the experiment's notebook, where the data set cinic10 has been pushed."""
    async with person.kernel(experiment.NAME) as kernel:
        source = inspect.getsource(experiment.draw)
        text(await kernel.run(f"from pathlib import Path\n{source}\ndraw(Path.home() / 'pictures')"))
        text(await kernel.run("%distribute data push ~/pictures --name cinic10"))
        try:
            yield kernel
        finally:
            text(await kernel.run("%distribute data rm cinic10"))
            text(await kernel.run("import shutil; shutil.rmtree(Path.home() / 'pictures')"))
