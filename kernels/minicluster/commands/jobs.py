"""What `%distribute` does about jobs and nodes: one small function for each row of its table.

Each is given the notebook's magics and what the line said; what it returns is shown as Out[n].
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from minicluster.commands.queue import Queue
from minicluster.commands.why import Why
from minicluster.display.tables import Table, job_table, node_table, snapshot_table
from minicluster.runs import attach as follow
from minicluster.runs import fetch_result, log_path
from minicluster.wire.streams import MARK

if TYPE_CHECKING:
    from minicluster.magics import Distribute
    from minicluster.results.results import Result

_LOG_BYTES = 256 * 1024


def status(magics: Distribute, said: Namespace) -> Any:
    return job_table(magics.service().jobs())


def nodes(magics: Distribute, said: Namespace) -> Any:
    return node_table(magics.service().nodes().nodes)


def queue(magics: Distribute, said: Namespace) -> Any:
    return Queue(magics.service().my_queue())


def gpus(magics: Distribute, said: Namespace) -> Any:
    """Take the GPUs again that this notebook server left idle; they are the same, so kernels can go on."""
    place = magics.service().take_gpus(os.environ.get("JUPYTERHUB_SERVER_NAME", ""))
    until = time.strftime("%H:%M", time.localtime(place.until)) if place.until else ""
    rows = tuple((gpu, place.node, until) for gpu in place.gpus)
    return Table(("GPU of this server", "node", "until"), rows, f"This server has {len(place.slots)} GPUs.")


def stop(magics: Distribute, said: Namespace) -> Any:
    return job_table([magics.service().stop(said.job)])


def why(magics: Distribute, said: Namespace) -> Any:
    return Why(magics.service().why(said.job))


def snapshots(magics: Distribute, said: Namespace) -> Any:
    service = magics.service()
    return snapshot_table(service.snapshots(said.job), said.job, service.browser_path())


def attach(magics: Distribute, said: Namespace) -> Any:
    return magics.keep(follow(said.job, magics.notebook()))


def result(magics: Distribute, said: Namespace) -> Any:
    """Bring a result once more; with names, only these, as copies."""
    made = fetch_result(magics.service().job(said.job), magics.notebook(), said.pull)
    print(came(said.job, made))  # noqa: T201
    return magics.keep(made)


def came(job_id: int, made: Result) -> str:
    """Say in one line which names a result has put into the notebook."""
    names = [f"{name} ({type(value).__name__})" for name, value in made.names.items()]
    return f"From job {job_id}: {', '.join(names) or 'no names'}."


def logs(magics: Distribute, said: Namespace) -> None:
    """Print the end of a rank's output."""
    service, rank = magics.service(), said.rank
    text, left_out_bytes = service.log(said.job, rank, _LOG_BYTES)
    if left_out_bytes:
        url = service.link(log_path(said.job, rank))
        print(f"… the first {left_out_bytes} bytes are left out here; all of it: {url}")  # noqa: T201
    # Marks say where something was displayed: its text stands there anyway.
    text = MARK.sub("", text) or f"Rank {rank} of job {said.job} has printed nothing so far."
    print(text, end="" if text.endswith("\n") else "\n")  # noqa: T201
