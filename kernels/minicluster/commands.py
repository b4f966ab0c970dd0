"""What `%distribute` does about jobs and nodes: one small function for each row of its table.

Each is given the notebook's magics and what the line said; what it returns is shown as Out[n].
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from .my_queue import Queue
from .runs import attach as follow
from .runs import fetch_result, log_path
from .tables import Table, job_table, node_table, snapshot_table
from .why import Why

if TYPE_CHECKING:
    from .command_line import Command
    from .magics import Distribute

_LOG_BYTES = 256 * 1024


def status(magics: Distribute, command: Command) -> Any:
    return job_table(magics.service().jobs())


def nodes(magics: Distribute, command: Command) -> Any:
    return node_table(magics.service().nodes().nodes)


def queue(magics: Distribute, command: Command) -> Any:
    return Queue(magics.service().my_queue())


def gpus(magics: Distribute, command: Command) -> Any:
    """Take the GPUs again that this notebook server left idle; they are the same, so kernels can go on."""
    place = magics.service().take_gpus(os.environ.get("JUPYTERHUB_SERVER_NAME", ""))
    until = time.strftime("%H:%M", time.localtime(place.until)) if place.until else ""
    rows = tuple((gpu, place.node, until) for gpu in place.gpus)
    return Table(("GPU of this server", "node", "until"), rows, f"This server has {len(place.slots)} GPUs.")


def stop(magics: Distribute, command: Command) -> Any:
    return job_table([magics.service().stop(command.job)])


def why(magics: Distribute, command: Command) -> Any:
    return Why(magics.service().why(command.job))


def snapshots(magics: Distribute, command: Command) -> Any:
    service = magics.service()
    return snapshot_table(service.snapshots(command.job), command.job, service.browser_path())


def attach(magics: Distribute, command: Command) -> Any:
    return magics.keep(follow(command.job, magics.notebook()))


def result(magics: Distribute, command: Command) -> Any:
    return magics.keep(fetch_result(magics.service().job(command.job), magics.notebook()))


def logs(magics: Distribute, command: Command) -> None:
    """Print the end of a rank's output."""
    service, rank = magics.service(), int(command.options.get("--rank", "0"))
    text, left_out_bytes = service.log(command.job, rank, _LOG_BYTES)
    if left_out_bytes:
        url = service.url + log_path(command.job, rank)
        print(f"… the first {left_out_bytes} bytes are left out here; all of it: {url}")  # noqa: T201
    text = text or f"Rank {rank} of job {command.job} has printed nothing so far."
    print(text, end="" if text.endswith("\n") else "\n")  # noqa: T201
