"""Puts on a node what an attempt needs before its ranks are forked."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from minicluster.capture.payload import PayloadDamaged, unpack
from minicluster.errors import MiniclusterError
from minicluster.runtime.agent import packages
from minicluster.runtime.agent.client import AgentClient, ServiceRefused
from minicluster.runtime.agent.part_downloads import PartDownloads
from minicluster.runtime.agent.zygote_client import ZygoteClient
from minicluster.runtime.diagnosis.connectivity import ConnectivityCheck
from minicluster.runtime.paths import AttemptPaths, write_whole
from minicluster.runtime.settings import AgentSettings
from minicluster.train.folders import LINKS
from minicluster.wire import RunOrder, relative_path

_MOST_NAMED = 5
_KEPT_BYTES = 4 << 20
"""A payload up to this size is kept for the next attempt."""

CACHE = "MINICLUSTER_DATA_CACHE"
"""Where the folders are that the node's data set agent fills."""
_LOOK_S = 0.1


class AttemptImpossible(MiniclusterError):
    """The attempt's ranks cannot be started here."""


class Preparation:
    """Lays out the order, the cell, its files, packages and data sets."""

    def __init__(
        self,
        order: RunOrder,
        paths: AttemptPaths,
        settings: AgentSettings,
        client: AgentClient,
        parts: PartDownloads,
    ) -> None:
        self._order = order
        self._paths = paths
        self._settings = settings
        self._client = client
        self._parts = parts

    async def run(self, zygote: ZygoteClient, connectivity: ConnectivityCheck) -> None:
        """Prepare all, and wait for the other nodes. Raises AttemptImpossible, OSError."""
        await zygote.usable()
        if zygote.broken:
            raise AttemptImpossible(f"No rank can start on {self._settings.node}: {zygote.broken}.")
        write_whole(self._paths.order, self._order.model_dump_json().encode())
        try:
            await link_data_sets(self._order.data)
        except NoDataHere as error:
            raise AttemptImpossible(f"No data sets on {self._settings.node}: {error}.") from error
        await asyncio.gather(connectivity.reach_all(), self._fetch_cell())

    async def _fetch_cell(self) -> None:
        client, paths, order = self._client, self._paths, self._order
        try:
            await self._fetch_payload()
            await self._parts.fetch_missing(order.parts)
            await packages.install(paths.payload, self._settings.scratch, order.env)
            if order.bundle_sha256:
                await client.fetch(order.bundle_sha256, paths.bundle)
                await asyncio.to_thread(lay_out, paths)
        except (ServiceRefused, PayloadDamaged) as error:
            raise AttemptImpossible(f"The cell could not be fetched. {error}") from error

    async def _fetch_payload(self) -> None:
        """Fetch the payload, unless the attempt before had the same: a sweep's trials do."""
        sha256, path = self._order.payload_sha256, self._paths.payload
        kept = self._settings.scratch / "newest-payload"
        data = _small_file(kept)
        # The cell before could have changed it.
        if hashlib.sha256(data).hexdigest() == sha256:
            write_whole(path, data)
            return
        await self._client.fetch(sha256, path)
        with suppress(OSError):
            write_whole(kept, _small_file(path))


def _small_file(path: Path) -> bytes:
    """Return what a file has; nothing if it is not there, or too large to be kept."""
    with suppress(OSError):
        if path.stat().st_size <= _KEPT_BYTES:
            return path.read_bytes()
    return b""


# Files from beside the notebook, laid out as the ranks' working folder: see minicluster.capture.bundle.
# The folder ends with the attempt, so its owner is told which new files end with it.


def lay_out(paths: AttemptPaths) -> None:
    """Make an attempt's working folder from its bundle. Raises PayloadDamaged, OSError."""
    unpack_bundle(paths.bundle, paths.work)
    write_whole(paths.laid_out, json.dumps(dict(_stamps(paths.work))).encode())


def unpack_bundle(bundle: Path, folder: Path) -> None:
    """Write a bundle's files, none of them elsewhere, and drop it. Raises PayloadDamaged, OSError."""
    head, files = unpack(bundle.read_bytes())
    bundle.unlink()
    folder.mkdir(parents=True)
    for name, data in files.items():
        try:
            path = folder / relative_path(name)
        except ValueError as error:
            raise PayloadDamaged(f"a bundle with the path {name!r}: {error}") from error
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if name in head["runnable"] else 0o644)


def lost_files(paths: AttemptPaths, node: str) -> list[str]:
    """Return a sentence about the files that the ranks made or changed in the folder, if there are any."""
    try:
        before: dict[str, int] = json.loads(paths.laid_out.read_bytes())
    except (OSError, ValueError):
        return []  # The folder was not laid out to its end.
    new = sorted(name for name, changed_at in _stamps(paths.work) if before.get(name) != changed_at)
    if not new:
        return []
    more = f" and {len(new) - _MOST_NAMED} more" if len(new) > _MOST_NAMED else ""
    named = ", ".join(new[:_MOST_NAMED]) + more
    return [
        f"What the cell wrote into its working folder on {node} is gone: {named}. "
        "With --with that is a copy; what is written into mc.output() comes back."
    ]


def _stamps(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each file with the time of its last change."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            path = Path(place, name)
            yield path.relative_to(folder).as_posix(), path.lstat().st_mtime_ns


# A job's data sets as its ranks see them: links by their names to folders in the node's cache.


class NoDataHere(Exception):
    """The task was started without a node's cache; the text is for the job's owner."""


async def link_data_sets(folders: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> None:
    """Link the data sets, and nothing else. Waits for those that are still on their way: of a task that
    joins a running attempt. Raises NoDataHere, OSError.
    """
    if not folders and LINKS not in environ:
        return
    missing = [name for name in (LINKS, CACHE) if name not in environ]
    if missing:
        raise NoDataHere(f"the task has no cache of data sets ({', '.join(missing)} not set)")
    links, cache = Path(environ[LINKS]), Path(environ[CACHE]) / "sets"
    _clear(links)
    for name, folder in folders.items():
        while not (cache / folder).is_dir():  # noqa: ASYNC110 - the data set agent is a process of its own
            await asyncio.sleep(_LOOK_S)
        link = links / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(cache / folder)


def _clear(links: Path) -> None:
    """Take away the links of the job before; the folder itself may be a mount."""
    links.mkdir(parents=True, exist_ok=True)
    for path in links.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
