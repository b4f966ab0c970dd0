"""A notebook's client of the job service; it authenticates with the user's token."""

from __future__ import annotations

import hashlib
import os
import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NoReturn
from urllib.parse import quote

from minicluster.capture.payload import CellPayload
from minicluster.changes.digest import digest
from minicluster.client.connection import (
    RETRY_FOR_S,
    URL_NAME,
    Connection,
    ExternalAccess,
    M,
    ServiceError,
)
from minicluster.errors import MiniclusterError
from minicluster.pickling.parts import PicklePart, digests
from minicluster.wire import (
    About,
    ArtifactList,
    BlobInfo,
    CurveList,
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
    RunDetails,
    RunList,
    RunOrigin,
    ServerPlacement,
    Snapshot,
    SnapshotList,
    StorageReport,
    Versions,
)
from minicluster.wire.jobs import GangToPrepare, PreparedGang
from minicluster.wire.sessions import CellSubmit, SessionCell
from minicluster.wire.starts import StartAnswer, StartQuestion

TOKEN_NAME = "JUPYTERHUB_API_TOKEN"  # noqa: S105 - the name of a variable, not a token
IMAGE_VARIABLE = "MINICLUSTER_IMAGE"
"""The image of the notebook server, if it runs in one: a cell's ranks run in the same."""
_BLOB_WORTH_A_QUESTION_BYTES = 64 * 1024
_FILES_AT_ONCE = 1000
_UPLOADS_AT_ONCE = 3
"""Below the service's limit for one user."""
_PIECE_BYTES = 1 << 18
"""What one send of a body takes: a socket copies what it could not take at once."""


_SHORTLY = 3.0
"""For how many seconds questions are tried again that only help a person."""
_HELD = 60.0
"""Seconds that an answer may take which the service holds until there is something new."""


class JobServiceClient(Connection):
    """The requests that a notebook sends to the job service."""

    def __init__(
        self, url: str, token: str, retry_for_s: float = RETRY_FOR_S, outside: ExternalAccess | None = None
    ) -> None:
        super().__init__(url, token, retry_for_s, outside)
        self._ranks: dict[str | None, Versions | None] = {}
        self.hashes = PartHashes()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> JobServiceClient:
        """Connect with the address and token that the hub set in the environment. Raises ServiceError."""
        given = os.environ if environ is None else environ
        missing = [name for name in (URL_NAME, TOKEN_NAME) if not given.get(name)]
        if missing:
            raise ServiceError(
                f"This notebook is not connected to a cluster: {' and '.join(missing)} not set in its "
                "environment.",
                "Open it on the hub (its notebook servers have both), then run the cell again.",
                "no_cluster",
            )
        return cls(given[URL_NAME], given[TOKEN_NAME])

    def about(self, image: str | None = None) -> About:
        """Return the token's user, and the versions of the cluster."""
        return self._message(About, "GET", "api/about", params={"image": image} if image else {})

    def ranks(self, image: str | None) -> Versions | None:
        """Return the ranks' versions for a notebook outside of the hub. Inside, versions are equal: None."""
        if self.outside and self._ranks.get(image) is None:
            self._ranks[image] = self.about(image).ranks
        return self._ranks.get(image)

    def submit(self, spec: JobSpec, key: str = "", run: RunOrigin | None = None) -> Job:
        """Submit a job. A second call with the same key returns the same job.

        run: what to remember of it; a service of an earlier release forgets it.
        """
        body = JobSubmit(idempotency_key=key or uuid.uuid4().hex, spec=spec, run=run)
        try:
            return self._submit(body)
        except ServiceError as error:
            if run is None or error.code != "unknown_field":
                raise
            return self._submit(body.model_copy(update={"run": None}))

    def prepare_gang(self, image: str | None) -> tuple[str, ...]:
        """Have a gang started for the user's next cell, where slots are free; return its nodes."""
        content = GangToPrepare(image=image).model_dump_json()
        return self._message(PreparedGang, "POST", "api/gangs", content=content).nodes

    def _submit(self, body: JobSubmit) -> Job:
        # A service of an earlier release refuses unknown fields, even empty ones.
        empty = {"spec": {"parts"}} if not body.spec.parts else None
        content = body.model_dump_json(exclude_none=True, exclude=empty)
        return self._message(Job, "POST", "api/jobs", content=content)

    def run_cell(self, job_id: int, cell: CellSubmit) -> SessionCell:
        """Have a session run a cell; return it once it is over, or after SHORT_CELL_S as it is then."""
        content = cell.model_dump_json(exclude_none=True)
        return self._message(SessionCell, "POST", f"api/jobs/{job_id}/cells", content=content, timeout=_HELD)

    def newest_cell(self, job_id: int) -> SessionCell | None:
        """Return the newest cell of a session; None if the job is none."""
        answer = self.ask("GET", f"api/jobs/{job_id}/cells", passing={404, 409})
        return SessionCell.model_validate_json(answer.content) if answer.status_code == 200 else None

    def session_cell(self, job_id: int, number: int) -> SessionCell:
        """The same, of a cell that was submitted."""
        return self._message(SessionCell, "GET", f"api/jobs/{job_id}/cells/{number}", timeout=_HELD)

    def download_cell_result(self, cell: SessionCell, file: BinaryIO) -> None:
        """Write what a cell of a session brings into an empty file. Raises OSError if writing fails."""
        self.download(f"api/jobs/{cell.job_id}/cells/{cell.number}/result", file)

    def interrupt_cell(self, job_id: int, number: int) -> None:
        """End a session's cell with KeyboardInterrupt."""
        self.ask("POST", f"api/jobs/{job_id}/cells/{number}/interrupt")

    def jobs(self, limit: int = 20) -> tuple[Job, ...]:
        return self._message(JobList, "GET", "api/jobs", params={"limit": limit}).jobs

    def job(self, job_id: int) -> Job:
        return self._message(Job, "GET", f"api/jobs/{job_id}")

    def runs(self, **query: str | int) -> RunList:
        """Return a page of the user's runs. query: see GET api/runs."""
        return self._of_runs(RunList, "api/runs", query)

    def run(self, run_id: int) -> RunDetails:
        return self._of_runs(RunDetails, f"api/runs/{run_id}", {})

    def curves(self, runs: Sequence[int], names: Sequence[str], points: int) -> CurveList:
        """Return what ranks of these runs logged: at most MOST_RUNS runs and MOST_SERIES names."""
        query = {"run": tuple(runs), "name": tuple(names), "points": points}
        return self._of_runs(CurveList, "api/run-curves", query)

    def _of_runs(self, kind: type[M], path: str, query: Mapping[str, Any]) -> M:
        try:
            return self._message(kind, "GET", path, params=query)
        except ServiceError as error:
            if error.code != "unknown_path":
                raise
            raise ServiceError(
                "The cluster's job service is of an earlier release, which keeps no runs.",
                "Ask an admin to upgrade it; %distribute status lists your jobs.",
                error.code,
            ) from None

    def why(self, job_id: int) -> JobWhy:
        """Return why a job makes no progress. The ranks of a running job report their stacks for this."""
        return self._message(JobWhy, "GET", f"api/jobs/{job_id}/why")

    def my_queue(self) -> MyQueue:
        """Return why the user's jobs wait, the user's share, and whose jobs come first."""
        return self._message(MyQueue, "GET", "api/queue/me")

    def starts(self, specs: Sequence[JobSpec]) -> StartAnswer:
        """Return when jobs would start that are not submitted, and the cluster's nodes."""
        content = StartQuestion(specs=tuple(specs)).model_dump_json(exclude_none=True)
        return self._message(StartAnswer, "POST", "api/starts", content=content, retry_for_s=_SHORTLY)

    def stop(self, job_id: int) -> Job:
        return self._message(Job, "POST", f"api/jobs/{job_id}/stop")

    def take_gpus(self, server: str) -> ServerPlacement:
        """Take back the GPUs that this notebook server left idle."""
        return self._message(ServerPlacement, "POST", f"api/gpus/{quote(server, safe='') or '-'}")

    def nodes(self) -> NodeList:
        return self._message(NodeList, "GET", "api/nodes")

    def log(self, job_id: int, rank: int, limit_bytes: int) -> tuple[str, int]:
        """Return the last `limit_bytes` of a rank's output, and how many bytes come before them."""
        path = f"api/jobs/{job_id}/log"
        # The first request fetches one byte: a header has the size of the whole output.
        first = self.ask("GET", path, params={"rank": rank, "offset": 0, "limit": 1})
        start = max(0, int(first.headers["Minicluster-Size"]) - limit_bytes)
        answer = self.ask("GET", path, params={"rank": rank, "offset": start, "limit": limit_bytes})
        return answer.content.decode("utf-8", "replace"), start

    def snapshots(self, job_id: int) -> tuple[Snapshot, ...]:
        return self._message(SnapshotList, "GET", f"api/jobs/{job_id}/snapshots").snapshots

    def storage(self) -> StorageReport:
        """Return what the user stores, and how much it may be."""
        return self._message(StorageReport, "GET", "api/storage")

    def images(self) -> ImageList:
        return self._message(ImageList, "GET", "api/images")

    def publish(self, ask: PublishImage) -> Publication:
        """Start publishing the layer that a job wrote, or return the progress of publishing it."""
        return self._message(Publication, "POST", "api/images", content=ask.model_dump_json())

    def artifacts(self, job_id: int) -> ArtifactList:
        """Return all files of a job; requests the list page by page."""
        path, params = f"api/jobs/{job_id}/files", {"limit": f"{_FILES_AT_ONCE}"}
        page = first = self._message(ArtifactList, "GET", path, params=params)
        artifacts = [*first.artifacts]
        while page.more:
            after = {**params, "after": artifacts[-1].place}
            page = self._message(ArtifactList, "GET", path, params=after)
            artifacts += page.artifacts
        return first.model_copy(update={"artifacts": tuple(artifacts), "more": False})

    def download_result(self, job_id: int, file: BinaryIO) -> None:
        """Write a job's result into an empty file. Raises OSError if writing fails."""
        self.download(f"api/jobs/{job_id}/result", file)

    def cell(self, job_id: int) -> bytes:
        """Return a job's cell with the names that were sent with it."""
        path = f"api/jobs/{job_id}/cell"
        cell = CellPayload.from_bytes(self.ask("GET", path).content)
        return cell.with_parts(lambda part: self.ask("GET", path, params={"part": part}).content).to_bytes()

    def missing(self, blobs: Sequence[str]) -> set[str]:
        """Return the blobs that the service lacks; it keeps the others until a job refers to them."""
        body = MissingBlobs(sha256=tuple(dict.fromkeys(blobs))).model_dump_json()
        return {*self._message(MissingBlobs, "POST", "api/missing-blobs", content=body).sha256}

    def put_parts(self, parts: Mapping[str, PicklePart]) -> None:
        """Upload blobs by their SHA-256, several at once: the service writes one while another travels."""

        def put(sha256: str) -> None:
            body = UploadBody(parts[sha256].data)
            headers = {"Content-Length": str(len(body)), "Content-Type": "application/octet-stream"}
            self.ask("PUT", f"api/blobs/{sha256}", content=body, headers=headers)

        pool = ThreadPoolExecutor(_UPLOADS_AT_ONCE, "upload")
        try:
            for _ in pool.map(put, parts):
                pass
        finally:
            # An interrupt does not wait for what is being sent.
            pool.shutdown(wait=False, cancel_futures=True)

    def put_blob(self, data: bytes) -> BlobInfo:
        """Upload a blob; if it is large, only if the service lacks it."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = f"api/blobs/{sha256}"
        if (
            len(data) > _BLOB_WORTH_A_QUESTION_BYTES
            and self.ask("HEAD", path, passing={404}).status_code == 200
        ):
            return BlobInfo(sha256=sha256, size_bytes=len(data))
        headers = {"Content-Type": "application/octet-stream"}
        return self._message(BlobInfo, "PUT", path, content=data, headers=headers)


class UploadBody:
    """The body of an upload, in pieces that are not copied. A retry reads it anew."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data.nbytes

    def __iter__(self) -> Iterator[memoryview]:
        for at in range(0, len(self), _PIECE_BYTES):
            yield self._data[at : at + _PIECE_BYTES]


class NoService(JobServiceClient):
    """Stands for a cluster to which there is no connection: each request raises the error that says why."""

    def __init__(self, error: MiniclusterError) -> None:
        super().__init__("http://no-cluster.invalid/", "")
        self._error = error

    def ask(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error


# Hashes a cell's large parts. A part unchanged since the previous cell is not hashed again.


class PartHashes:
    """SHA-256 of parts. A digest that is eight times as fast finds parts of the previous cell.

    seed: random and secret, so that nobody can construct two contents with the same digest.
    """

    def __init__(self) -> None:
        self._seed = secrets.randbits(64)
        self._before: dict[tuple[int, bytes], str] = {}

    def of(self, parts: Sequence[PicklePart]) -> list[str]:
        """Return the SHA-256 of each part, in order."""
        looks = self._looks(parts)
        fresh = {look: part for look, part in zip(looks, parts, strict=True) if look not in self._before}
        known = self._before | dict(zip(fresh, digests(list(fresh.values())), strict=True))
        self._before = {look: known[look] for look in looks}
        return [known[look] for look in looks]

    def known(self, parts: Sequence[PicklePart]) -> list[str]:
        """Return the SHA-256 of those of these parts that were in the last call of `of`."""
        return [self._before[look] for look in self._looks(parts) if look in self._before]

    def _looks(self, parts: Sequence[PicklePart]) -> list[tuple[int, bytes]]:
        return [(part.size_bytes, digest(part.data, self._seed)) for part in parts]
