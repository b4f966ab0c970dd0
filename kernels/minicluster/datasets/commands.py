"""`%distribute data`, `%distribute data push DIR --name NAME` and `%distribute data rm NAME`."""

from __future__ import annotations

from pathlib import Path

from minicluster.client.client import JobServiceClient
from minicluster.datasets import calls
from minicluster.datasets.folder import scan
from minicluster.datasets.progress import UploadProgress, sizes
from minicluster.datasets.push import Push
from minicluster.display.tables import Table
from minicluster.wire import DataSet
from minicluster.wire.files.data import VERSION_CHARS


def show(service: JobServiceClient) -> Table:
    """List the data sets that a cell may name."""
    return table(calls.listed(service), service)


def push(service: JobServiceClient, path: Path, name: str, shared: bool) -> None:
    """Upload a folder to the cluster."""
    folder = scan(path)
    progress = UploadProgress(name, folder)
    work = Push(folder, service, progress.tell)
    try:
        kept = work.run(name, shared or None)
    except BaseException as error:
        progress.broke(work.so_far, error)
        raise
    progress.done(work.so_far, kept)


def remove(service: JobServiceClient, name: str) -> None:
    """Remove a data set of the user's own."""
    calls.remove(service, name)
    print(  # noqa: T201
        f"The data set {name} is removed. Jobs that named it go on with it; nodes drop it when "
        "they need the room."
    )


def table(sets: tuple[DataSet, ...], service: JobServiceClient) -> Table:
    """Return data sets as a table."""
    heads = ("name", "size", "files", "shared", "nodes that have it", "version", "earlier versions")
    rows = tuple(
        (
            one.name if one.owner == service.user or not service.user else f"{one.owner}/{one.name}",
            sizes(one.size_bytes),
            f"{one.files:,}",
            "yes" if one.shared else "",
            ", ".join(one.nodes) or "none yet",
            one.manifest_sha256[:VERSION_CHARS],
            ", ".join(earlier.manifest_sha256[:VERSION_CHARS] for earlier in one.earlier),
        )
        for one in sets
    )
    return Table(heads, rows, "There are no data sets. Bring one: %distribute data push DIR --name NAME")
