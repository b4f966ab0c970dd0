"""Users' data sets: stored when all their pieces have arrived, found by name, removed with their last owner.

A piece is a file named by its SHA-256. 20,000 small files fit in a few; see minicluster.wire.files.data.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from minicluster.wire import FILE_BYTES, BlobInfo, DataManifest, DataUse, JobSpec, StorageKind
from minicluster.wire.files.data import FILES_MOST, MANIFEST_BYTES, PIECES_MOST, VERSION_CHARS
from minicluster_hub.jobs.records import DataSetRecord, DataSetVersion
from minicluster_hub.storage.blobs import BlobFiles
from minicluster_hub.storage.quotas import Storage, cost
from minicluster_hub.store import Store, StoreError

MOST_OF_OWNER = 1000
"""Most data sets of one owner: lists show all data sets, and shared ones to everybody."""
_SWEEP_EACH_S = 600.0
_SWEPT_AT_ONCE = 200
_SWEEPS_FOR_ROOM = 20
"""The service does nothing else meanwhile; what is left goes with the sweeps that follow."""
_VERSIONS_STAY = (
    "An earlier one stays for {days:.3g} days after a run last read it, unless its owner's quota is full."
)


class DataSetRefused(Exception):
    """A data set is refused or does not exist. code: the error's code. status: of the HTTP answer."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint


@dataclass(frozen=True)
class DataSetFiles:
    """files: the pieces. storage: counts them for quotas.

    grace_s: seconds that a piece outside of all data sets stays after a push last named it.
    versions_s: seconds that a version which is not the newest stays after a run last read it.
    reading: held while a manifest is read, which takes memory. storing: owners with a manifest in `save`.
    removed: set when there is something to sweep.
    """

    store: Store
    files: BlobFiles
    clock: Callable[[], float]
    log: logging.Logger
    storage: Storage
    grace_s: float = 86_400.0
    versions_s: float = 30 * 86_400.0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    removed: asyncio.Event = field(default_factory=asyncio.Event)
    storing: set[str] = field(default_factory=set[str])

    # --- push ---------------------------------------------------------------------------------

    async def missing(self, owner: str, pieces: tuple[BlobInfo, ...]) -> tuple[BlobInfo, ...]:
        """Return the pieces to send. Raises OverQuota if they exceed the owner's quota."""
        missing = await asyncio.to_thread(self._missing, owner, pieces)
        if missing:
            self.storage.check(owner, StorageKind.DATA, sum(cost(piece.size_bytes) for piece in missing))
        return missing

    def _missing(self, owner: str, pieces: tuple[BlobInfo, ...]) -> tuple[BlobInfo, ...]:
        missing = {piece.sha256 for piece in self.store.datasets.lacking(owner, pieces, self.clock())}
        return tuple(
            piece
            for piece in dict.fromkeys(pieces)
            if piece.sha256 in missing or self.files.size(piece.sha256) != piece.size_bytes
        )

    async def save(self, owner: str, name: str, manifest_sha256: str, shared: bool | None) -> DataSetRecord:
        """Make a version the newest of its name. Raises DataSetRefused if pieces of it are missing."""
        # Checked before reading: nobody may learn whether another user's manifest is here.
        if self.store.datasets.lacking(
            owner, (BlobInfo(sha256=manifest_sha256, size_bytes=0),), self.clock()
        ):
            raise _manifest_missing()
        if owner in self.storing:
            hint = "Push again in a moment, one data set after the other."
            raise DataSetRefused(429, "push_under_way", "another push of yours is being checked", hint)
        self.storing.add(owner)
        try:
            async with self.reading:
                manifest = await asyncio.to_thread(self._read, manifest_sha256)
                return await self._save(owner, name, manifest_sha256, manifest, shared)
        finally:
            self.storing.remove(owner)

    async def _save(
        self, owner: str, name: str, manifest_sha256: str, manifest: DataManifest, shared: bool | None
    ) -> DataSetRecord:
        info = BlobInfo(sha256=manifest_sha256, size_bytes=self.files.size(manifest_sha256) or 0)
        pieces = (info, *manifest.pieces)
        if missing := await self.missing(owner, pieces):
            message = f"{len(missing)} pieces of {name} are missing"
            raise DataSetRefused(409, "pieces_missing", message, "Push again: only missing pieces are sent.")
        before = self.store.datasets.find(owner, name)
        if before is None and self.store.datasets.count(owner) >= MOST_OF_OWNER:
            message = f"you have {MOST_OF_OWNER} data sets, which is the limit"
            raise DataSetRefused(409, "too_many_data_sets", message, "%distribute data rm NAME removes one.")
        more = _entries(len(manifest.files), manifest.size_bytes)
        more -= _entries(before.files, before.size_bytes) if before else 0
        self.storage.check(owner, StorageKind.DATA, max(0, more))
        record = DataSetRecord(
            owner=owner,
            name=name,
            manifest_sha256=manifest_sha256,
            files=len(manifest.files),
            size_bytes=manifest.size_bytes,
            shared=(before is not None and before.shared) if shared is None else shared,
            created_at=self.clock(),
        )
        await asyncio.to_thread(self.store.datasets.keep, record, [piece.sha256 for piece in pieces])
        self.storage.forget(owner)
        self.log.info("%s pushed %s: %s files, %s bytes", owner, name, record.files, record.size_bytes)
        return record

    def _read(self, sha256: str) -> DataManifest:
        if (size := self.files.size(sha256) or 0) > MANIFEST_BYTES:
            raise _manifest_too_large(f"{size:,} bytes; the limit is {MANIFEST_BYTES:,}")
        try:
            text = self.files.path(sha256).read_bytes()
            # Counted before parsing, to save memory. Brackets in names are counted, too, which is harmless.
            if text.count(b"{") > PIECES_MOST:
                raise _manifest_too_large(f"more than {PIECES_MOST:,} pieces")
            if text.count(b"[") // 2 > FILES_MOST:
                raise _manifest_too_large(f"more than {FILES_MOST:,} entries")
            return DataManifest.model_validate_json(text)
        except FileNotFoundError:
            raise _manifest_missing() from None
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            message, hint = f"{sha256} is not a manifest: {problem}", "%distribute data push makes one."
            raise DataSetRefused(422, "manifest_wrong", message, hint) from error

    def damaged(self, sha256: str) -> bool:
        """Return whether a piece does not match its SHA-256. If so, remove it: a push sends it again."""
        with self.files.path(sha256).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                return False
        self.files.remove(sha256)
        self.log.error("the piece %s is damaged on the disk: removed", sha256)
        return True

    # --- look-up -------------------------------------------------------------------------------

    def resolved(self, user: str, spec: JobSpec) -> tuple[DataUse, ...]:
        """Return a job's data sets, in the versions that it names or the newest. Raises DataSetRefused.

        The versions are kept for some time from now on, so that the run can be repeated.
        """
        names = [use.name for use in spec.data]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise DataSetRefused(422, "data_twice", f"the data set {min(twice)} is named twice")
        found = {use.name: self._resolved(user, use) for use in spec.data}
        if found:
            self.store.datasets.note_read(list(found.values()))
        return tuple(
            DataUse(
                name=name,
                owner=version.owner,
                manifest_sha256=version.manifest_sha256,
                size_bytes=version.size_bytes,
                files=version.files,
            )
            for name, version in found.items()
        )

    def _resolved(self, user: str, use: DataUse) -> DataSetVersion:
        newest = self._visible(user, use.name)
        now, wanted = self.clock(), use.manifest_sha256
        if newest.manifest_sha256.startswith(wanted):
            return DataSetVersion(
                newest.owner, newest.name, newest.manifest_sha256, newest.files, newest.size_bytes, now
            )
        earlier = self.store.datasets.versions(newest.owner, newest.name)
        matching = [one for one in earlier if one.manifest_sha256.startswith(wanted)]
        if len(matching) != 1:
            raise self._unknown_version(use, newest, earlier, ambiguous=bool(matching))
        return replace(matching[0], read_at=now)

    def _unknown_version(
        self, use: DataUse, newest: DataSetRecord, earlier: list[DataSetVersion], *, ambiguous: bool
    ) -> DataSetRefused:
        manifests = dict.fromkeys((newest.manifest_sha256, *(one.manifest_sha256 for one in earlier)))
        listed = ", ".join(manifest[:VERSION_CHARS] for manifest in manifests)
        hint = f"Versions, the newest first: {listed}. " + _VERSIONS_STAY.format(
            days=self.versions_s / 86_400
        )
        wanted = use.manifest_sha256[:VERSION_CHARS]
        message = f"several versions of {use.name} begin with {wanted}"
        return DataSetRefused(
            422,
            "unknown_data_version",
            message if ambiguous else f"{use.name} has no version {wanted}",
            hint,
        )

    def _visible(self, user: str, name: str) -> DataSetRecord:
        owner, _, own_name = name.rpartition("/")
        found = self.store.datasets.find(owner or user, own_name)
        if found is None or not (found.owner == user or found.shared):
            existing = ", ".join(_shown_name(one, user) for one in self.store.datasets.visible(user))
            hint = f"Data sets: {existing}." if existing else "There is no data set yet."
            hint += " %distribute data push DIR --name NAME adds one."
            raise DataSetRefused(422, "unknown_data_set", f"there is no data set {name}", hint)
        return found

    # --- sweep ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sweep pieces until cancelled: every ten minutes, and when a data set was removed."""
        while True:
            self.removed.clear()
            try:
                await self._sweep_all()
            except (StoreError, OSError) as error:
                self.log.warning("pieces of removed data sets stay for now: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_SWEEP_EACH_S, max(1.0, self.grace_s))):
                    await self.removed.wait()

    def remove(self, owner: str, name: str) -> bool:
        """Remove a data set; return whether there was one. The next sweep frees its space."""
        found = self.store.datasets.remove(owner, name)
        self.storage.forget(owner)
        self.removed.set()
        return found

    def make_room(self, owner: str) -> bool:
        """Remove an owner's earlier versions, as the quota is full; return whether there were any."""
        if not self.store.datasets.drop_earlier(owner):
            return False
        self.log.info("removed earlier versions of data sets of %s: the quota is full", owner)
        for _ in range(_SWEEPS_FOR_ROOM):
            if self.sweep() < _SWEPT_AT_ONCE:
                break
        return True

    async def _sweep_all(self) -> None:
        swept = _SWEPT_AT_ONCE
        while swept == _SWEPT_AT_ONCE:
            swept = self.sweep()
            await asyncio.sleep(0)  # let other tasks run

    def sweep(self) -> int:
        """Remove some unused pieces' rows, and the files that then have no owner; return the number of rows.

        Rows and files are removed in one step: otherwise a piece that comes in between would lose its file.
        """
        now = self.clock()
        swept = self.store.datasets.sweep(now - self.grace_s, now - self.versions_s, _SWEPT_AT_ONCE)
        for sha256 in swept.gone:
            self.files.remove(sha256)
        if swept.rows:
            self.log.info("removed %s pieces that no data set has", swept.rows)
        return swept.rows


def _entries(files: int, size_bytes: int) -> int:
    """Return the bytes that a data set counts beyond its pieces: nodes unpack them into many files."""
    return max(FILE_BYTES, files * FILE_BYTES - size_bytes)


def _manifest_missing() -> DataSetRefused:
    return DataSetRefused(409, "pieces_missing", "the manifest is missing", "Push again.")


def _manifest_too_large(why: str) -> DataSetRefused:
    hint = "Pack small files into larger ones (tar), or push its folders one by one."
    return DataSetRefused(413, "manifest_too_large", f"the data set's list of files has {why}", hint)


def _shown_name(record: DataSetRecord, user: str) -> str:
    return record.name if record.owner == user else f"{record.owner}/{record.name}"
