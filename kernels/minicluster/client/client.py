"""What a notebook asks the job service, with its user's own token."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from minicluster.capture.payload import CellPayload
from minicluster.client.connection import PATIENCE_S, URL_NAME, Connection, ServiceError
from minicluster.pickling.hashes import PartHashes
from minicluster.wire import (
    About,
    ArtifactList,
    BlobInfo,
    ImageList,
    Job,
    JobList,
    JobSpec,
    JobSubmit,
    JobWhy,
    MissingBlobs,
    MyQueue,
    NodeList,
    Publication,
    PublishImage,
    ServerPlace,
    Snapshot,
    SnapshotList,
    Versions,
)

if TYPE_CHECKING:
    from minicluster.client.outside import Outside

TOKEN_NAME = "JUPYTERHUB_API_TOKEN"  # noqa: S105 - the name of a variable, not a token
_BLOB_WORTH_A_QUESTION_BYTES = 64 * 1024
_FILES_AT_ONCE = 1000


class Service(Connection):
    """The job service, as notebooks see it. A submission is repeated by its key."""

    def __init__(
        self, url: str, token: str, patience_s: float = PATIENCE_S, outside: Outside | None = None
    ) -> None:
        super().__init__(url, token, patience_s, outside)
        self._ranks: dict[str | None, Versions | None] = {}
        self.hashes = PartHashes()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Service:
        """Connect as the hub told this notebook server. Raises ServiceError where there is no hub."""
        given = os.environ if environ is None else environ
        missing = [name for name in (URL_NAME, TOKEN_NAME) if not given.get(name)]
        if missing:
            raise ServiceError(
                f"This notebook does not know a cluster: {' and '.join(missing)} not set in its environment.",
                "Open it on the hub (its notebook servers have both), then run the cell again.",
                "no_cluster",
            )
        return cls(given[URL_NAME], given[TOKEN_NAME])

    def about(self, image: str | None = None) -> About:
        """Return whom the token is for, and what the other side has."""
        return self._message(About, "GET", "api/about", params={"image": image} if image else {})

    def ranks(self, image: str | None) -> Versions | None:
        """Return what the ranks have, for a notebook that may differ: not one of the hub's own."""
        if self.outside and self._ranks.get(image) is None:
            self._ranks[image] = self.about(image).ranks
        return self._ranks.get(image)

    def submit(self, spec: JobSpec, key: str = "") -> Job:
        """Hand in a job; with the same key again it is the same job."""
        body = JobSubmit(idempotency_key=key or uuid.uuid4().hex, spec=spec)
        # A service of an earlier release refuses a field that it does not know, an empty one, too.
        empty = {"spec": {"parts"}} if not spec.parts else None
        content = body.model_dump_json(exclude_none=True, exclude=empty)
        return self._message(Job, "POST", "api/jobs", content=content)

    def jobs(self, limit: int = 20) -> tuple[Job, ...]:
        return self._message(JobList, "GET", "api/jobs", params={"limit": limit}).jobs

    def job(self, job_id: int) -> Job:
        return self._message(Job, "GET", f"api/jobs/{job_id}")

    def why(self, job_id: int) -> JobWhy:
        """Return why a job does not get on; of a running one its ranks are asked now."""
        return self._message(JobWhy, "GET", f"api/jobs/{job_id}/why")

    def my_queue(self) -> MyQueue:
        """Return why one's jobs wait, one's share, and who is before them."""
        return self._message(MyQueue, "GET", "api/queue/me")

    def stop(self, job_id: int) -> Job:
        return self._message(Job, "POST", f"api/jobs/{job_id}/stop")

    def take_gpus(self, server: str) -> ServerPlace:
        """Take the GPUs again that this notebook server left idle."""
        return self._message(ServerPlace, "POST", f"api/gpus/{quote(server, safe='') or '-'}")

    def nodes(self) -> NodeList:
        return self._message(NodeList, "GET", "api/nodes")

    def log(self, job_id: int, rank: int, limit_bytes: int) -> tuple[str, int]:
        """Return the end of a rank's output, at most so many bytes, and the bytes left out before."""
        path = f"api/jobs/{job_id}/log"
        # The size comes as a header, so the first request asks for next to nothing.
        first = self.ask("GET", path, params={"rank": rank, "offset": 0, "limit": 1})
        start = max(0, int(first.headers["Minicluster-Size"]) - limit_bytes)
        answer = self.ask("GET", path, params={"rank": rank, "offset": start, "limit": limit_bytes})
        return answer.content.decode("utf-8", "replace"), start

    def snapshots(self, job_id: int) -> tuple[Snapshot, ...]:
        return self._message(SnapshotList, "GET", f"api/jobs/{job_id}/snapshots").snapshots

    def images(self) -> ImageList:
        return self._message(ImageList, "GET", "api/images")

    def publish(self, ask: PublishImage) -> Publication:
        """Begin to publish what a job left, or ask how far that is."""
        return self._message(Publication, "POST", "api/images", content=ask.model_dump_json())

    def artifacts(self, job_id: int) -> ArtifactList:
        """Return all files of a job, read page by page."""
        path, params = f"api/jobs/{job_id}/files", {"limit": f"{_FILES_AT_ONCE}"}
        page = first = self._message(ArtifactList, "GET", path, params=params)
        artifacts = [*first.artifacts]
        while page.more:
            after = {**params, "after": artifacts[-1].place}
            page = self._message(ArtifactList, "GET", path, params=after)
            artifacts += page.artifacts
        return first.model_copy(update={"artifacts": tuple(artifacts), "more": False})

    def bring_result(self, job_id: int, file: BinaryIO) -> None:
        """Write a job's result into an empty file. Raises OSError when that does not take it."""
        self.bring(f"api/jobs/{job_id}/result", file)

    def cell(self, job_id: int) -> bytes:
        """Return a job's cell with what was sent along."""
        path = f"api/jobs/{job_id}/cell"
        cell = CellPayload.from_bytes(self.ask("GET", path).content)
        return cell.with_parts(lambda part: self.ask("GET", path, params={"part": part}).content).to_bytes()

    def missing(self, blobs: Sequence[str]) -> set[str]:
        """Return those of these blobs that are to be sent; the others stay until a job names them."""
        body = MissingBlobs(sha256=tuple(dict.fromkeys(blobs))).model_dump_json()
        return {*self._message(MissingBlobs, "POST", "api/missing-blobs", content=body).sha256}

    def put_part(self, data: memoryview, sha256: str) -> None:
        """Bring a blob to the service that it lacks."""
        self.ask("PUT", f"api/blobs/{sha256}", content=bytes(data))

    def put_blob(self, data: bytes) -> BlobInfo:
        """Bring a blob to the service, unless it is a large one that it has."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = f"api/blobs/{sha256}"
        if (
            len(data) > _BLOB_WORTH_A_QUESTION_BYTES
            and self.ask("HEAD", path, passing={404}).status_code == 200
        ):
            return BlobInfo(sha256=sha256, size_bytes=len(data))
        headers = {"Content-Type": "application/octet-stream"}
        return self._message(BlobInfo, "PUT", path, content=data, headers=headers)
