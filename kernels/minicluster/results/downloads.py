"""`%distribute files`: lists or downloads the files of a job's output folder."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.display.tables import LinkCell, Table
from minicluster.errors import MiniclusterError
from minicluster.pickling.pickling import readable_size
from minicluster.wire import Artifact, ArtifactList

AT_ONCE = 4
ROWS = 200
_SHOW_EACH_S = 0.5


class NotDownloaded(MiniclusterError):
    """A file of a job could not be downloaded."""


@dataclass(frozen=True)
class Download:
    """A job's files in a folder. there: number of files that were complete before this download."""

    folder: Path
    files: int
    size_bytes: int
    there: int

    def __repr__(self) -> str:
        known = f", {self.there} of them were there already" if self.there else ""
        files = "1 file" if self.files == 1 else f"{self.files} files"
        return f"{files} ({readable_size(self.size_bytes)}) in {self.folder}{known}."


def files(service: JobServiceClient, job_id: int, path: str | None, folder: Path | None) -> Table | Download:
    """List a job's files, or those below a path; with a folder, download them."""
    listed = service.artifacts(job_id)
    chosen = _chosen(listed.artifacts, path) if path else listed.artifacts
    for sentence in listed.left:
        print(sentence)  # noqa: T201
    if folder is None:
        return file_table(listed.model_copy(update={"artifacts": chosen}), job_id, service.browser_path())
    return download(service, job_id, chosen, folder, _show)


def file_table(listed: ArtifactList, job_id: int, path: str) -> Table:
    """List a job's files. path: the service's path in a browser."""
    until = time.strftime("%Y-%m-%d", time.localtime(listed.keep_until)) if listed.keep_until else ""
    places = placed(listed.artifacts)
    rows: list[tuple[str, ...]] = [
        (place, readable_size(one.size_bytes), until, LinkCell(path + file_path(job_id, one)))
        for place, one in list(places.items())[:ROWS]
    ]
    if len(places) > ROWS:
        all_of_them = f"%distribute files {job_id} --to FOLDER downloads all of them"
        rows.append((f"… and {len(places) - ROWS} more", "", "", all_of_them))
    empty = f"Job {job_id} has left no files. What a cell writes into mc.output() comes back when it ends."
    return Table(("file", "size", "kept until", "link"), tuple(rows), empty)


def file_path(job_id: int, file: Artifact) -> str:
    """Return the path of a file, relative to the service's address."""
    return f"api/jobs/{job_id}/files/{quote(file.path)}?part={file.part}"


def placed(artifacts: Iterable[Artifact]) -> dict[str, Artifact]:
    """Return the files of all tasks by their path in one folder.

    If several tasks have a file with the same path and content, it appears once. If contents differ, the
    files of all tasks but the first are placed under task-1/, task-2/ and so on.
    """
    found: dict[str, Artifact] = {}
    folders: set[str] = set()
    for one in sorted(artifacts, key=lambda one: (one.part, one.path)):
        place, known = one.path, found.get(one.path)
        if known is not None and known.sha256 == one.sha256:
            continue
        prefix = f"task-{one.part}"
        while place in found or place in folders or any(up in found for up in _above(place)):
            place, prefix = f"{prefix}/{one.path}", f"{prefix}_"
        found[place] = one
        folders.update(_above(place))
    return dict(sorted(found.items()))


def download(
    service: JobServiceClient,
    job_id: int,
    artifacts: Iterable[Artifact],
    folder: Path,
    show: Callable[[int, int], None] = lambda done, size: None,
) -> Download:
    """Download files into a folder. Continue partial files; check each file's SHA-256.

    show: called from time to time with the number of bytes downloaded and the total.
    Raises NotDownloaded and ServiceError.
    """
    places = {folder / place: one for place, one in placed(artifacts).items()}
    there = {target for target, one in places.items() if _is_there(target, one, folder)}
    size = sum(one.size_bytes for one in places.values())
    taken = _Taken(sum(places[target].size_bytes for target in there))
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        coming = [
            (file_path(job_id, one), one, target) for target, one in places.items() if target not in there
        ]
        waiting = {pool.submit(_download, service, *one, taken) for one in coming}
        while waiting:
            done, waiting = wait(waiting, _SHOW_EACH_S, FIRST_EXCEPTION)
            for work in done:
                work.result()
            show(taken.size_bytes, size)
    finally:
        taken.stopped = True  # An interrupt does not wait for large files; partial files stay on disk.
        pool.shutdown(cancel_futures=True)
    return Download(folder, len(places), size, len(there))


def _chosen(artifacts: Iterable[Artifact], path: str) -> tuple[Artifact, ...]:
    """Return the file at this path, or all files under this folder."""
    wanted = path.strip("/")
    found = tuple(one for one in artifacts if one.path == wanted or one.path.startswith(f"{wanted}/"))
    if not found:
        raise NotDownloaded(f"The job has left no file {path!r}.", "%distribute files ID lists what it left.")
    return found


def _above(place: str) -> list[str]:
    parts = place.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _is_there(target: Path, file: Artifact, folder: Path) -> bool:
    """Whether a file was already downloaded. Raises NotDownloaded if another file has its path."""
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise NotDownloaded(f"{target.parent} leads out of {folder}.", "Choose another folder with --to.")
    if not os.path.lexists(target):
        return False
    if target.is_file() and target.stat().st_size == file.size_bytes and _digest(target) == file.sha256:
        return True
    raise NotDownloaded(
        f"{target} is there already, and it is not the job's file.", "Choose another folder with --to."
    )


@dataclass
class _Taken:
    """Counts the downloaded bytes, in several threads."""

    size_bytes: int
    stopped: bool = False


class _Part(BufferedWriter):
    """A partially downloaded file."""

    def __init__(self, path: Path, taken: _Taken) -> None:
        super().__init__(FileIO(path, "ab"))
        self._taken = taken
        taken.size_bytes += self.tell()

    def write(self, data: Any, /) -> int:
        if self._taken.stopped:
            raise NotDownloaded("The download was interrupted.", "Run the same line again to continue.")
        self._taken.size_bytes += len(data)
        return super().write(data)


def _download(service: JobServiceClient, path: str, file: Artifact, target: Path, taken: _Taken) -> None:
    mark = hashlib.sha256(f"{file.sha256} {target.name}".encode()).hexdigest()[:16]
    part = target.with_name(f".{mark}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _Part(part, taken) as opened:
            _fill(service, path, file, opened)
        if _digest(part) != file.sha256:
            part.unlink()
            raise NotDownloaded(f"{file.path} arrived damaged.", "Run the line again.")
        part.replace(target)
    except OSError as error:
        raise NotDownloaded(f"{target} could not be written: {error.strerror}.") from error


def _fill(service: JobServiceClient, path: str, file: Artifact, part: _Part) -> None:
    """Download the rest of a file. Reconnect as long as each attempt receives some bytes."""
    while (before := part.tell()) < file.size_bytes:
        try:
            service.download(path, part, file.sha256)
        except ServiceError as error:
            if error.code != "unreachable" or part.tell() == before:
                raise


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _show(done: int, size: int) -> None:
    end = "\n" if done == size else ""
    print(f"\r{readable_size(done)} of {readable_size(size)}", end=end, flush=True)  # noqa: T201
