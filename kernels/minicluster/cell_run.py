"""A cell's run, as the notebook does it: capture, upload, submit, follow, read the result."""

from __future__ import annotations

import io
import os
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from minicluster.capture import versions
from minicluster.capture.bundle import pack_bundle
from minicluster.capture.capture import Captured, CaptureLimits, NotebookContext, capture
from minicluster.capture.cell import CellSource
from minicluster.capture.framework import FoundFramework, find_framework, imports_of_payload
from minicluster.capture.payload import CellPayload
from minicluster.capture.run_origin import CommitSearch, Submitted, differing_versions, run_origin
from minicluster.capture.sources import Source, register_sources
from minicluster.changes.applying import SentObjects
from minicluster.client.client import IMAGE_VARIABLE, JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.display.failures import raise_unless_succeeded
from minicluster.display.follow import Follower, Screen
from minicluster.display.tables import JobHandle
from minicluster.display.view import RunView
from minicluster.interrupts import RunningKernel, StopRequests, interrupts_go_to
from minicluster.options import CellOptions, OptionWrong, refuse_what_torch_alone_does
from minicluster.pickling.parts import holders
from minicluster.pickling.pickling import parts_of, readable_size
from minicluster.publishing import site
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
from minicluster.wire import GitCommit, Job, JobSpec, JobState, NotebookCell, RunOrigin
from minicluster.wire.training.framework import Framework

_UNNAMED = "cell"
_NOT_PULLED = (
    "stayed on the ranks of an earlier cell, where --pull did not name it: create it again in this cell."
)

JobIdentity = tuple[int, float]

MakeScreen = Callable[[Callable[[], None]], Screen]


@dataclass(frozen=True)
class RunContext:
    """What a run needs from its notebook.

    hidden: returns whether a name is IPython's own.
    make_screen: makes the screen that shows a job, given the function that its Stop button calls.
    left_on_ranks: names that stayed on the ranks of earlier cells, with the reason.
    shown_as: returns how a traceback names a file of the notebook's code: "Cell In[3]".
    origin: the cell that runs now, if the front end reports it.
    line: the line of the magic that runs now, without the magic's name.
    sent: the objects that were sent with each job (see `identity_of`); its result changes them.
    """

    service: JobServiceClient
    namespace: dict[str, Any]
    hidden: Callable[[str], bool]
    limits: CaptureLimits
    tail_lines: int
    kernel: RunningKernel
    make_screen: MakeScreen
    shown_as: Callable[[str], str] = str
    origin: NotebookCell | None = None
    line: str = ""
    sent: dict[JobIdentity, SentObjects] = field(default_factory=dict)
    left_on_ranks: dict[str, str] = field(default_factory=dict)


def run_cell(source: str, filename: str, options: CellOptions, context: RunContext) -> Result | JobHandle:
    """Run a cell on the cluster. Return its result, or with --detach a handle of the job.

    Raises DistributedCellError and JobStopped. Before anything starts, it raises CellNotPlain,
    CellSyntaxError, NotPicklable, ModulesNotSendable, BundleNotSendable, UnknownNames, ServiceError.
    """
    captured, cell = capture_cell(source, filename, options, context)
    return run_payload(captured, cell, options, context)


def capture_cell(
    source: str, filename: str, options: CellOptions, context: RunContext
) -> tuple[Captured, CellSource]:
    """Take a cell with the names that it needs. Raises as `run_cell`, before anything starts."""
    cell = CellSource.parse(source, filename)
    target = versions.target_limits(versions.here(), context.service.ranks(options.image))
    # Functions of this cell come back. Tracebacks here and on the ranks of later cells then show its lines.
    register_sources({filename: Source(filename, source)})
    notebook = NotebookContext(
        context.namespace, Path.cwd(), context.hidden, target, context.shown_as, context.left_on_ranks
    )
    captured = capture(cell, notebook, context.limits, options.push, options.pull)
    if options.pull is not None:
        returned = {*options.pull, *options.gather}
        context.left_on_ranks.update(dict.fromkeys({*cell.assigned} - returned, _NOT_PULLED))
    return replace(captured, payload=replace(captured.payload, gather=options.gather)), cell


@dataclass(frozen=True)
class UploadedCell:
    """A cell that the service has, ready to be submitted. sent: the objects that a result may change."""

    spec: JobSpec
    origin: RunOrigin
    sent: SentObjects | None


def run_payload(
    captured: Captured, cell: CellSource, options: CellOptions, context: RunContext
) -> Result | JobHandle:
    """Submit a packed cell and follow its job. Raises as `run_cell`."""
    uploaded, key = upload(captured, cell, options, context), uuid.uuid4().hex

    def submit() -> Job:
        job = context.service.submit(uploaded.spec, key, uploaded.origin)
        if uploaded.sent is not None:
            context.sent[identity_of(job)] = uploaded.sent
        return job

    if options.detach:
        return JobHandle(context.service, submit())
    return _result_of(follow(context, submit), context)


def upload(captured: Captured, cell: CellSource, options: CellOptions, context: RunContext) -> UploadedCell:
    """Upload a packed cell. Raises as `run_cell`."""
    options = with_framework(captured, options)
    payload, service = captured.payload, context.service
    commit = CommitSearch(Path.cwd())
    bundle = None
    if options.files:
        packed = pack_bundle(options.files, Path.cwd(), context.limits.bundle_bytes)
        bundle = service.put_blob(packed).sha256
    image = None if service.outside else os.environ.get(IMAGE_VARIABLE)
    lacking = site.packages_beyond(options.image or image, service) if image else ()
    if options.sync_env:
        check_site(service)
        payload = replace(payload, packages=site.pins_to_install())
    else:
        site.warn_missing_packages(cell, context.namespace, lacking)
    blobs = upload_cell(service, payload, captured.names, context.namespace)
    spec = job_spec(options, blobs.payload_sha256, image, bundle, context.origin, blobs.parts)
    sent = SentObjects(captured.shared, captured.names, context.namespace) if payload.shared else None
    packages = {one.name: one.version for one in lacking}
    return UploadedCell(spec, origin_of(captured, options, context, packages, commit.commit()), sent)


def framework_of(captured: Captured, options: CellOptions) -> FoundFramework:
    """Find what trains in a cell."""
    modules = imports_of_payload(captured.payload) | captured.modules
    return find_framework(modules, options.env, os.environ, options.framework)


def with_framework(captured: Captured, options: CellOptions) -> CellOptions:
    """Add the framework that trains in a cell, and what its ranks need for that. Raises OptionWrong."""
    found = framework_of(captured, options)
    if found.framework not in (None, Framework.TORCH):
        refuse_what_torch_alone_does(found.framework, options)
    if found.note:
        print(found.note)  # noqa: T201
    # Torch is what a job has that names none: a service of an earlier release knows no other.
    named = None if found.framework is Framework.TORCH else found.framework
    return replace(options, framework=named, env={**found.environ, **options.env})


def origin_of(
    captured: Captured,
    options: CellOptions,
    context: RunContext,
    packages: Mapping[str, str],
    commit: GitCommit | None,
) -> RunOrigin:
    """Return what to remember of the cell. packages: of the user site, that the ranks' image lacks."""
    payload, ours, theirs = captured.payload, versions.here(), context.service.ranks(options.image)
    target = versions.target_limits(ours, theirs)
    # A cell's first line is that of its magic.
    source = payload.source if payload.script else payload.source.partition("\n")[2]
    return run_origin(
        source,
        context.line,
        Submitted(captured.names, context.namespace, target),
        commit,
        {**differing_versions(ours, theirs), **packages},
        script=payload.script,
        tags=options.tags,
        rerun_of=options.rerun_of,
    )


def check_site(service: JobServiceClient) -> None:
    """Refuse --sync-env where it does nothing: a virtual environment has no user site."""
    if service.outside and site.user_site() is None:
        raise OptionWrong(
            "--sync-env installs for the ranks what pip put into ~/.local, which this Python does not use.",
            "Choose an image with these packages: %distribute images shows them, --image NAME takes one.",
        )


def attach(job_id: int, context: RunContext) -> Result:
    """Show a job with all of its output; return its result."""
    return _result_of(follow(context, lambda: context.service.job(job_id)), context)


@dataclass(frozen=True)
class EndedJob:
    """A job that has succeeded. result: its result, if it came along with the end."""

    job: Job
    result: bytes


def follow(context: RunContext, get_job: Callable[[], Job]) -> EndedJob:
    """Show a job until its end. Raises DistributedCellError, JobStopped, KernelShutdown."""
    stops = StopRequests(context.kernel)
    with interrupts_go_to(stops.interrupt):
        # From here on, an interrupt must not lose the job that was submitted.
        job = get_job()
        view = RunView(job, context.service.browser_path(job_page(job.id)), context.tail_lines)
        ended = Follower(context.service, view, stops).run(context.make_screen(stops.ask))
    if ended.state is not JobState.SUCCEEDED:
        # A cell that failed changes nothing.
        context.sent.pop(identity_of(ended), None)
    rank = 0 if ended.error is None or ended.error.rank is None else ended.error.rank
    raise_unless_succeeded(ended, context.service.link(log_path(ended.id, rank)))
    return EndedJob(ended, view.result)


def _result_of(ended: EndedJob, context: RunContext) -> Result:
    if not ended.result:
        return fetch_result(ended.job, context)
    check_owner(ended.job, context.service.user)
    return _opened_result(io.BytesIO(ended.result), ended.job, context, None)


def fetch_result(job: Job, context: RunContext, pull: tuple[str, ...] | None = None) -> Result:
    """Read a job's result. Raises ServiceError if there is none yet, and ResultConflict.

    The changes will be made in the objects that this notebook sent. If the kernel was restarted, if the
    result was read before, or if `pull` names what to return, they are made in copies instead.
    """
    check_owner(job, context.service.user)
    # The file is on disk: a result may be larger than the free memory.
    with tempfile.TemporaryFile(prefix="minicluster-result-") as file:
        _download_result(job, context, file)
        return _opened_result(file, job, context, pull)


def _opened_result(file: BinaryIO, job: Job, context: RunContext, pull: tuple[str, ...] | None) -> Result:
    result = opened(file, job)
    sent = context.sent.get(identity_of(job)) if pull is None else None
    if sent is not None or not result.has_shared_objects:
        found = read_result(result, job, context.namespace, sent)
        return found if pull is None else chosen(found, pull, job)
    return _as_copies(result, job, context, pull)


def _download_result(job: Job, context: RunContext, file: BinaryIO) -> None:
    try:
        context.service.download_result(job.id, file)
    except ServiceError as error:
        if error.code != "no_result":
            raise
        hint = f"Watch it: %distribute attach {job.id}" if not job.state.terminal else error.hint
        raise ServiceError(
            f"Job {job.id} is {job.state.value}: it has no result.", hint, error.code
        ) from None
    except OSError as error:
        raise not_written(job, error) from error


def _as_copies(result: ResultFile, job: Job, context: RunContext, pull: tuple[str, ...] | None) -> Result:
    """Make copies of what was sent with the cell, and make the changes in these."""
    copies = copies_of(context.service.cell(job.id), job, context.namespace)
    found = read_result(result, job, context.namespace, copies.sent)
    return chosen(copies.with_changes(found, job), pull, job)


def job_spec(
    options: CellOptions,
    payload_sha256: str,
    notebook_image: str | None = None,
    bundle_sha256: str | None = None,
    origin: NotebookCell | None = None,
    parts: tuple[str, ...] = (),
) -> JobSpec:
    """Build the job's specification from the line's options."""
    asked = {name: value for name, value in vars(options).items() if name in JobSpec.model_fields}
    made = {"name": options.name or _UNNAMED, "image": options.image or notebook_image or None}
    blobs = {"payload_sha256": payload_sha256, "bundle_sha256": bundle_sha256, "parts": parts}
    # On the wire the stall timeout has its former name.
    stall_timeout = {"quiet_after_s": options.stall_timeout_s}
    return JobSpec(**{**asked, **made, **blobs, **stall_timeout, "origin": origin})


def identity_of(job: Job) -> JobIdentity:
    """Return what identifies a job. Its number alone does not: another cluster has the same numbers."""
    return job.id, job.created_at


def job_page(job_id: int) -> str:
    """Return the path of a job's page, which has its whole log."""
    return f"jobs/{job_id}"


def log_path(job_id: int, rank: int = 0) -> str:
    """Return the path of a rank's whole output, relative to the service's address."""
    return f"api/jobs/{job_id}/log?rank={rank}"


# The upload of a cell, in parts: only parts that the service lacks are sent.


ANNOUNCED_BYTES = 5_000_000
"""An upload of this size or more is announced, since the user waits for it."""


@dataclass(frozen=True)
class CellBlobs:
    """The blobs of an uploaded cell. parts: large values that the payload refers to."""

    payload_sha256: str
    parts: tuple[str, ...]


def upload_cell(
    service: JobServiceClient,
    payload: CellPayload,
    names: Mapping[str, Any],
    namespace: dict[str, Any],
) -> CellBlobs:
    """Upload a cell. names, namespace: used to print which names make the upload large."""
    in_order = service.hashes.of(payload.parts)
    found = dict(zip(in_order, payload.parts, strict=True))
    try:
        missing = service.missing(tuple(found)) if found else set()
    except ServiceError as error:
        if error.code != "unknown_path":
            raise
        # A service of an earlier release accepts a cell only as one blob.
        return CellBlobs(service.put_blob(payload.to_bytes()).sha256, ())
    size = sum(found[sha256].size_bytes for sha256 in missing)
    if size >= ANNOUNCED_BYTES:
        sent = {sha256: found[sha256].size_bytes for sha256 in missing}
        large = ", ".join(
            holders(names, sent, lambda value: service.hashes.known(parts_of(value, namespace)))
        )
        print(f"Sending {readable_size(size)}{f': {large}' if large else ''}")  # noqa: T201
    service.put_parts({sha256: found[sha256] for sha256 in missing})
    blob = service.put_blob(payload.without_parts(in_order))
    return CellBlobs(blob.sha256, tuple(found))
