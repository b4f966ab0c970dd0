"""`./run --demo`: logs in, starts a server and runs the quickstart as a user would, without a browser."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from minicluster_hub.launch.errors import DemoFailed, Stopped
from minicluster_hub.launch.kernel import KernelConnection, open_kernel
from minicluster_hub.launch.messages import echo
from minicluster_hub.launch.signals import END
from minicluster_hub.launch.visitor import Visitor

NOTEBOOK = "quickstart.ipynb"
SERVICE_PATH = "/services/minicluster/"
_CELL_LIMIT_S = 300.0
_LEAST_ACCURACY = 0.97
_RANKS = 3
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Stopwatch:
    """Prints each step and how long it took."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def lap(self, what: str, detail: str = "") -> None:
        """Print the time since the last line, with the step that took it."""
        now = time.monotonic()
        echo(f"  {what:<20}{now - self._last:6.1f} s   {detail}".rstrip())
        self._last = now


def temporary_data() -> Path:
    """Make a data folder for one demo."""
    return Path(tempfile.mkdtemp(prefix="minicluster-demo-"))


def remove_others(data_dir: Path, kept: Path) -> None:
    """Remove everything from a temporary data folder but the executed notebook."""
    for path in data_dir.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path != kept:
            path.unlink(missing_ok=True)


def run_visit(url: str, name: str, password: str, executed: Path) -> None:
    """Run the notebook as a user and check its results. Raises DemoFailed, VisitFailed or Stopped."""
    asyncio.run(_stoppable(_visit(url, name, password, executed)))


async def _stoppable(visit: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(visit)
    loop = asyncio.get_running_loop()
    for number in END:
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        raise Stopped from None


async def _visit(url: str, name: str, password: str, executed: Path) -> None:
    watch = Stopwatch()
    async with Visitor(url, name) as visitor:
        await visitor.log_in(password)
        watch.lap("logged in")
        await visitor.start_server()
        watch.lap("notebook server")
        notebook = await _fetch(visitor)
        async with open_kernel(visitor, NOTEBOOK) as kernel:
            try:
                await _run_cells(kernel, notebook, watch)
            finally:
                nbformat.write(notebook, executed)
            accuracy = float(await kernel.evaluate("accuracy"))
            ranks = int(await kernel.evaluate("ranks"))
        job = await _newest_job(visitor)
    echo(f"accuracy {accuracy:.3f}")
    _check(accuracy, ranks, job)


async def _fetch(visitor: Visitor) -> NotebookNode:
    """Read the notebook from the user's home, through the notebook server."""
    here = visitor.server_path
    model = await visitor.call("GET", f"{here}api/contents/{NOTEBOOK}", here)
    return nbformat.reads(json.dumps(model["content"]), as_version=4)


async def _run_cells(kernel: KernelConnection, notebook: NotebookNode, watch: Stopwatch) -> None:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(cells, start=1):
        first_line = cell.source.partition("\n")[0]
        try:
            cell.outputs = await asyncio.wait_for(kernel.run(cell.source), _CELL_LIMIT_S)
        except TimeoutError as error:
            raise DemoFailed(f"Cell {count} ({first_line}) ran longer than {_CELL_LIMIT_S:.0f} s.") from error
        cell.execution_count = count
        watch.lap(f"cell {count} of {len(cells)}", first_line)
        for output in cell.outputs:
            if output.output_type == "error":
                trace = _COLOUR.sub("", "\n".join(output.traceback))
                raise DemoFailed(f"Cell {count} ({first_line}) failed:\n{trace or output.evalue}")


async def _newest_job(visitor: Visitor) -> dict[str, Any]:
    await visitor.http.get(SERVICE_PATH)
    answer = await visitor.call("GET", f"{SERVICE_PATH}api/jobs", SERVICE_PATH)
    if not answer["jobs"]:
        raise DemoFailed("The job service has no job: the cell did not run on the cluster.")
    return answer["jobs"][0]


def _check(accuracy: float, ranks: int, job: dict[str, Any]) -> None:
    """Check that three ranks on three nodes trained the model, and that it is accurate."""
    echo(f"job {job['id']} {job['state']} with {job['world_size']} ranks on {', '.join(job['nodes'])}")
    if job["state"] != "succeeded" or job["world_size"] != _RANKS or len(set(job["nodes"])) != _RANKS:
        raise DemoFailed(f"The job should have succeeded with {_RANKS} ranks on {_RANKS} nodes: {job}")
    if ranks != _RANKS:
        raise DemoFailed(f"The cell counted {ranks} ranks instead of {_RANKS}.")
    if accuracy < _LEAST_ACCURACY:
        raise DemoFailed(f"The accuracy {accuracy:.3f} is below {_LEAST_ACCURACY}.")
