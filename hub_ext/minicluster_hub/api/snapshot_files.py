"""What a report says of snapshots and of files of the output folder, held against the files that came."""

from __future__ import annotations

from minicluster.wire import BlobInfo, RunOrder, TaskReport
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.web.context import Context


def only_those_here(context: Context, run: RunOrder | None, report: TaskReport) -> TaskReport:
    """Leave out of a report what did not come, so that what is stored can be fetched."""
    if run is None or not (report.snapshots or report.artifacts):
        return report
    own, output = context.blobs.of_job(run.job_id), context.blobs.output_of(run.job_id)
    snapshots = tuple(one for one in report.snapshots if _is_here(own, one.blob))
    here = [one for one in report.artifacts if _is_here(output, one.blob)]
    most = run.output.files * max(1, run.group_world_size)
    artifacts = context.store.artifacts.fitting(run.job_id, here, most) if here else ()
    return report.model_copy(update={"snapshots": snapshots, "artifacts": artifacts})


def missing(told: TaskReport, kept: TaskReport) -> tuple[str, ...]:
    """Return the files of the output folder that were left out of a report: the agent has them still."""
    here = {one.blob.sha256 for one in kept.artifacts}
    return tuple({one.blob.sha256 for one in told.artifacts} - here)


def _is_here(files: BlobFiles, blob: BlobInfo) -> bool:
    return files.size(blob.sha256) == blob.size_bytes


def drop_surplus(context: Context, run: RunOrder, report: TaskReport) -> None:
    """Keep as many snapshots as the job wants; the files go after their rows."""
    surplus = context.store.snapshots.prune(run.job_id, report.snapshots[-1].keep)
    files = context.blobs.of_job(run.job_id)
    for sha256 in surplus:
        files.remove(sha256)
