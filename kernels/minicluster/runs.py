"""The way of a cell in the notebook: captured, handed in, followed, and its result taken back."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

from minicluster.capture import versions
from minicluster.capture.bundle import pack_bundle
from minicluster.capture.capture import Captured, CaptureLimits, NotebookContext, capture
from minicluster.capture.cell import CellSource
from minicluster.capture.sources import Source, remember
from minicluster.changes.applying import Sent
from minicluster.client.client import Service
from minicluster.client.connection import ServiceError
from minicluster.client.sending import send
from minicluster.display.failures import raise_unless_succeeded
from minicluster.display.follow import Follower, Screen
from minicluster.display.tables import JobHandle
from minicluster.display.view import RunView
from minicluster.interrupts import Kernel, StopRequests, interrupts_go_to
from minicluster.options import CellOptions, OptionWrong
from minicluster.publishing import installed
from minicluster.publishing.site import user_site
from minicluster.results.result_file import ResultFile
from minicluster.results.results import (
    Result,
    check_owner,
    chosen,
    copies_of,
    not_written,
    opened,
    read_result,
)
from minicluster.wire import DataUse, Job, JobSpec, JobState, NodeRange, NotebookCell

IMAGE_VARIABLE = "MINICLUSTER_IMAGE"
"""Set where the notebook server runs in an image: a cell's ranks run in the same one."""

UNNAMED = "cell"
"""What a job is called that has neither a name nor a notebook."""

_NOT_PULLED = "stayed on the ranks of an earlier cell, where --pull did not name it: make it here again."

JobIdentity = tuple[int, float]

MakeScreen = Callable[[Callable[[], None]], Screen]


@dataclass(frozen=True)
class Notebook:
    """What a run needs from the notebook.

    make_screen: makes the screen for a job, given what to call when its Stop button is pressed.
    stayed: names that stayed on the ranks of earlier cells, with the reason.
    shown_as: what a traceback calls a file of the notebook's code: "Cell In[3]".
    origin: the cell that runs now, where the front end tells which it is.
    sent: by job (see `identity_of`), what went out with its cell and is still to be changed by its result.
    """

    service: Service
    namespace: dict[str, Any]
    hidden: Callable[[str], bool]
    limits: CaptureLimits
    tail_lines: int
    kernel: Kernel
    make_screen: MakeScreen
    shown_as: Callable[[str], str] = str
    origin: NotebookCell | None = None
    sent: dict[JobIdentity, Sent] = field(default_factory=dict)
    stayed: dict[str, str] = field(default_factory=dict)


def run_cell(source: str, filename: str, options: CellOptions, notebook: Notebook) -> Result | JobHandle:
    """Run a cell on the cluster and return what it made, or a handle when it is detached.

    Raises DistributedCellError, JobStopped, and before anything starts: CellNotPlain,
    CellMistyped, NotPicklable, ModulesNotSendable, BundleNotSendable, UnknownNames, ServiceError.
    """
    cell = CellSource.parse(source, filename)
    reader = versions.reader(versions.here(), notebook.service.ranks(options.image))
    # Its functions come back with its name: tracebacks here and on the ranks of later cells show its lines.
    remember({filename: Source(filename, source)})
    around = NotebookContext(
        notebook.namespace, Path.cwd(), notebook.hidden, reader, notebook.shown_as, notebook.stayed
    )
    captured = capture(cell, around, notebook.limits, options.push, options.pull)
    if options.pull is not None:
        came = {*options.pull, *options.gather}
        notebook.stayed.update(dict.fromkeys({*cell.assigned} - came, _NOT_PULLED))
    captured = replace(captured, payload=replace(captured.payload, gather=options.gather))
    return run_payload(captured, cell, options, notebook)


def run_payload(
    captured: Captured, cell: CellSource, options: CellOptions, notebook: Notebook
) -> Result | JobHandle:
    """Hand in what was packed, and follow it. Raises as `run_cell`."""
    payload = captured.payload
    bundle = _bundle(options, notebook)
    image = None if notebook.service.outside else os.environ.get(IMAGE_VARIABLE)
    if options.sync_env:
        check_site(notebook.service)
        payload = replace(payload, packages=installed.travelling())
    elif image:
        installed.tell(cell, notebook.namespace, notebook.service, options.image or image)
    blobs = send(notebook.service, payload, captured.names, notebook.namespace)
    spec = job_spec(options, blobs.payload_sha256, image, bundle, notebook.origin, blobs.parts)
    sent = Sent(captured.shared, captured.names, notebook.namespace) if payload.shared else None
    key = uuid.uuid4().hex

    def submit() -> Job:
        job = notebook.service.submit(spec, key)
        if sent is not None:
            notebook.sent[identity_of(job)] = sent
        return job

    return JobHandle(notebook.service, submit()) if options.detach else _followed(notebook, submit)


def check_site(service: Service) -> None:
    """Refuse what would do nothing: a virtual environment of a laptop has no packages of its own user's."""
    if service.outside and user_site() is None:
        raise OptionWrong(
            "--sync-env takes along what pip put into ~/.local, and this Python does not use that.",
            "Choose an image that has it: %distribute images shows them, --image NAME takes one.",
        )


def _bundle(options: CellOptions, notebook: Notebook) -> str | None:
    """Bring the files that the line names to the service; return their blob's SHA-256."""
    if not options.files:
        return None
    data = pack_bundle(options.files, Path.cwd(), notebook.limits.bundle_bytes)
    return notebook.service.put_blob(data).sha256


def attach(job_id: int, notebook: Notebook) -> Result:
    """Follow a job from its beginning, however long ago, and return what it made."""
    return _followed(notebook, lambda: notebook.service.job(job_id))


def _followed(notebook: Notebook, get_job: Callable[[], Job]) -> Result:
    return fetch_result(follow(notebook, get_job), notebook)


def follow(notebook: Notebook, get_job: Callable[[], Job]) -> Job:
    """Show a job until its end. Raises DistributedCellError, JobStopped, JobGoesOn."""
    stops = StopRequests(notebook.kernel)
    with interrupts_go_to(stops.interrupt):
        # From here on an interrupt must not lose sight of a job that was handed in.
        job = get_job()
        view = RunView(job, notebook.service.browser_path(job_page(job.id)), notebook.tail_lines)
        ended = Follower(notebook.service, view, stops).run(notebook.make_screen(stops.ask))
    if ended.state is not JobState.SUCCEEDED:
        # A cell that failed changes nothing.
        notebook.sent.pop(identity_of(ended), None)
    rank = 0 if ended.error is None or ended.error.rank is None else ended.error.rank
    raise_unless_succeeded(ended, notebook.service.link(log_path(ended.id, rank)))
    return ended


def fetch_result(job: Job, notebook: Notebook, pull: tuple[str, ...] | None = None) -> Result:
    """Bring a job's result. Raises ServiceError as long as there is none, ResultConflict.

    It is for the objects that this notebook sent; where they are not known any more (after a restart of the
    kernel), when all is there already, and for the names of `pull`, for copies of them.
    """
    check_owner(job, notebook.service.user)
    # On the disk: it may be larger than the memory that is left.
    with tempfile.TemporaryFile(prefix="minicluster-result-") as file:
        _bring(job, notebook, file)
        result = opened(file, job)
        sent = notebook.sent.get(identity_of(job)) if pull is None else None
        if sent is not None or not result.refers:
            found = read_result(result, job, notebook.namespace, sent)
            return found if pull is None else chosen(found, pull, job)
        return _as_copies(result, job, notebook, pull)


def _bring(job: Job, notebook: Notebook, file: BinaryIO) -> None:
    try:
        notebook.service.bring_result(job.id, file)
    except ServiceError as error:
        if error.code != "no_result":
            raise
        hint = f"Watch it: %distribute attach {job.id}" if not job.state.terminal else error.hint
        raise ServiceError(
            f"Job {job.id} is {job.state.value}: it has no result.", hint, error.code
        ) from None
    except OSError as error:
        raise not_written(job, error) from error


def _as_copies(result: ResultFile, job: Job, notebook: Notebook, pull: tuple[str, ...] | None) -> Result:
    """Make anew what was sent with the cell, and put into that what came back."""
    copies = copies_of(notebook.service.cell(job.id), job, notebook.namespace)
    found = read_result(result, job, notebook.namespace, copies.sent)
    return chosen(copies.with_changes(found, job), pull, job)


def job_spec(
    options: CellOptions,
    payload_sha256: str,
    notebook_image: str | None = None,
    bundle_sha256: str | None = None,
    origin: NotebookCell | None = None,
    parts: tuple[str, ...] = (),
) -> JobSpec:
    """Build the request as data from the line's options."""
    asked = {one.name: getattr(options, one.name) for one in fields(options)}
    made = {
        "name": options.name or UNNAMED,
        "nodes": _range(options.nodes),
        "slots": _range(options.slots),
        "data": tuple(DataUse(name=name) for name in options.data),
        "image": options.image or notebook_image or None,
        "origin": origin,
        "parts": parts,
    }
    same = {name: value for name, value in asked.items() if name in JobSpec.model_fields}
    return JobSpec(payload_sha256=payload_sha256, bundle_sha256=bundle_sha256, **{**same, **made})


def _range(asked: tuple[int, int] | None) -> NodeRange | None:
    return None if asked is None else NodeRange(min=asked[0], max=asked[1])


def identity_of(job: Job) -> JobIdentity:
    """Return what tells a job from all others: another cluster has one of this number, too."""
    return job.id, job.created_at


def job_page(job_id: int) -> str:
    """Return the path of a job's page in the hub, with its whole log."""
    return f"jobs/{job_id}"


def log_path(job_id: int, rank: int = 0) -> str:
    """Return the path of a rank's whole output, under the service's address."""
    return f"api/jobs/{job_id}/log?rank={rank}"
