"""The way of a cell in the notebook: captured, handed in, followed, and its result taken back."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .capture import Limits, Surroundings, capture
from .cell import CellSource
from .client import Service, ServiceError
from .failures import raise_unless_succeeded
from .follow import Follower, Screen, StopRequests, interrupts_go_to
from .options import CellOptions
from .results import Result, check_owner, not_written, open_result
from .tables import JobHandle
from .view import RunView
from .wire import Job, JobSpec, NodeRange

IMAGE_VARIABLE = "MINICLUSTER_IMAGE"
"""Set where the notebook server runs in an image: a cell's ranks run in the same one."""

MakeScreen = Callable[[Callable[[], None]], Screen]


@dataclass(frozen=True)
class Notebook:
    """What a run needs from the notebook.

    make_screen: makes the screen for a job, given what to call when its Stop button is pressed.
    """

    service: Service
    namespace: dict[str, Any]
    hidden: Callable[[str], bool]
    limits: Limits
    tail_lines: int
    make_screen: MakeScreen


def run_cell(source: str, filename: str, options: CellOptions, notebook: Notebook) -> Result | JobHandle:
    """Run a cell on the cluster and return what it made, or a handle when it is detached.

    Raises DistributedCellError, JobStopped, and before anything starts: CellNotPlain,
    SyntaxError, NotPicklable, ModulesNotSendable, UnknownNames, ServiceError.
    """
    cell = CellSource.parse(source, filename)
    around = Surroundings(notebook.namespace, Path.cwd(), notebook.hidden)
    payload = capture(cell, around, notebook.limits, options.push, options.pull)
    blob = notebook.service.put_blob(payload.to_bytes())
    spec = job_spec(options, blob.sha256, os.environ.get(IMAGE_VARIABLE))
    key = uuid.uuid4().hex
    if options.detach:
        return JobHandle(notebook.service, notebook.service.submit(spec, key))
    return _followed(notebook, lambda: notebook.service.submit(spec, key))


def attach(job_id: int, notebook: Notebook) -> Result:
    """Follow a job from its beginning, however long ago, and return what it made."""
    return _followed(notebook, lambda: notebook.service.job(job_id))


def _followed(notebook: Notebook, get_job: Callable[[], Job]) -> Result:
    stops = StopRequests()
    with interrupts_go_to(stops.ask):
        # From here on an interrupt must not lose sight of a job that was handed in.
        job = get_job()
        view = RunView(job, notebook.service.browser_path(job_page(job.id)), notebook.tail_lines)
        ended = Follower(notebook.service, view, stops).run(notebook.make_screen(stops.ask))
    rank = 0 if ended.error is None or ended.error.rank is None else ended.error.rank
    raise_unless_succeeded(ended, notebook.service.url + log_path(ended.id, rank))
    return fetch_result(ended, notebook)


def fetch_result(job: Job, notebook: Notebook) -> Result:
    """Bring a job's result once more. Raises ServiceError as long as there is none."""
    check_owner(job)
    # On the disk: it may be larger than the memory that is left.
    with tempfile.TemporaryFile(prefix="minicluster-result-") as file:
        try:
            notebook.service.bring_result(job.id, file)
        except ServiceError as error:
            if error.code != "no_result":
                raise
            hint = f"Watch it: %distribute attach {job.id}" if not job.state.terminal else ""
            raise ServiceError(
                f"Job {job.id} is {job.state.value}: it has no result.", hint, error.code
            ) from None
        except OSError as error:
            raise not_written(job, error) from error
        return open_result(file, job, notebook.namespace)


def job_spec(options: CellOptions, payload_sha256: str, notebook_image: str | None = None) -> JobSpec:
    """Build the request as data from the line's options."""
    nodes = None if options.nodes is None else NodeRange(min=options.nodes[0], max=options.nodes[1])
    return JobSpec(
        name=options.name,
        payload_sha256=payload_sha256,
        nodes=nodes,
        slots_per_node=options.slots_per_node,
        ranks_per_node=options.ranks_per_node,
        env=dict(options.env),
        timeout_s=options.timeout_s,
        image=options.image or notebook_image or None,
        shm_bytes=options.shm_bytes,
        fault_tolerant=options.fault_tolerant,
        quiet_after_s=options.quiet_after_s,
    )


def job_page(job_id: int) -> str:
    """Return the path of a job's page in the hub, with its whole log."""
    return f"jobs/{job_id}"


def log_path(job_id: int, rank: int = 0) -> str:
    """Return the path of a rank's whole output, under the service's address."""
    return f"api/jobs/{job_id}/log?rank={rank}"
