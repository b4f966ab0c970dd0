"""What a report says of snapshots, held against the files that came."""

from __future__ import annotations

from minicluster.wire import RunOrder, TaskReport
from minicluster_hub.handlers.context import Context


def only_those_here(context: Context, run: RunOrder | None, report: TaskReport) -> TaskReport:
    """Leave out of a report what did not come, so that what is stored can be fetched."""
    if run is None or not report.snapshots:
        return report
    files = context.blobs.of_job(run.job_id)
    here = tuple(one for one in report.snapshots if files.size(one.blob.sha256) == one.blob.size_bytes)
    return report.model_copy(update={"snapshots": here})


def drop_surplus(context: Context, run: RunOrder, report: TaskReport) -> None:
    """Keep as many snapshots as the job wants; the files go after their rows."""
    surplus = context.store.snapshots.prune(run.job_id, report.snapshots[-1].keep)
    files = context.blobs.of_job(run.job_id)
    for sha256 in surplus:
        files.remove(sha256)
