"""Jobs' snapshots: uploaded and downloaded by agents, and downloaded as files by their owner."""

from __future__ import annotations

from minicluster.wire import BlobInfo, SnapshotList, StorageKind
from minicluster_hub.api.jobs import check_not_removed
from minicluster_hub.api.storage.blobs import JobFileUpload
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.files import FileReply
from minicluster_hub.web.route import BYTES, Query, Scope, route


class SnapshotsHandler(UserHandler):
    @route(
        "api/jobs/{job_id}/snapshots",
        "A job's snapshots, the newest first",
        scope=Scope.READ,
        answer=SnapshotList,
    )
    def get(self, job_id: str) -> None:
        record = self.job_record(job_id)
        self.reply(SnapshotList(snapshots=tuple(self.context.store.snapshots.listed(record.id))))


class SnapshotHandler(UserHandler, FileReply):
    """One snapshot as a tar file. It contains pickles of its owner, so admins cannot get it."""

    def get_content_type(self) -> str:
        return "application/x-tar"

    @route(
        "api/jobs/{job_id}/snapshots/{step}",
        "One snapshot, as a tar file",
        scope=Scope.READ,
        answer=BYTES,
        query=(Query("part", "integer", "which part of it", default=0, high=9_999),),
        parts={"step": "[0-9]{1,18}"},
    )
    async def get(self, job_id: str, step: str) -> None:
        record = self.job_record(job_id, admins=False)
        check_not_removed(record, "the snapshot")
        number = self.query_int("part")
        found = {one.step: one for one in self.context.store.snapshots.records(record.id)}.get(int(step))
        if found is None or number >= len(found.parts):
            message = f"job {record.id} has no snapshot of step {step}"
            raise ApiError(
                404, "unknown_snapshot", message, f"api/jobs/{record.id}/snapshots lists those it has"
            )
        named = f"-part-{number}" if len(found.parts) > 1 else ""
        self.offer_as(f"job-{record.id}-step-{found.step}{named}.tar")
        await self.send_file(self.context.blobs.of_job(record.id).path(found.parts[number].sha256))


class TaskSnapshotHandler(JobFileUpload, FileReply):
    """Snapshots of the task's job: uploads new ones, downloads the one to resume from."""

    kind = StorageKind.SNAPSHOTS

    @property
    def files(self) -> BlobFiles:
        return self.context.blobs.of_job(self.run_order().job_id)

    @property
    def body_limit_bytes(self) -> int:
        return self.context.limits.snapshot_bytes

    @property
    def body_name(self) -> str:
        return "the snapshot"

    @route("api/tasks/snapshots/{sha256}", "Store a snapshot", body=BYTES, answer=BlobInfo)
    async def put(self, sha256: str) -> None:
        await self.receive(sha256)

    @route("api/tasks/snapshots/{sha256}", "The snapshot that the task's attempt resumes from", answer=BYTES)
    async def get(self, sha256: str) -> None:
        run = self.run_order()
        wanted = run.snapshot.parts if run.snapshot else ()
        if sha256 not in {part.sha256 for part in wanted}:
            raise ApiError(404, "unknown_blob", f"{sha256} is not the snapshot that this task resumes from")
        await self.send_file(self.context.blobs.of_job(run.job_id).path(sha256))
