"""A node's cache of data sets: their folders, their states, and eviction.

Ranks run as the same user as the data set agent, so file modes cannot hide a data set from them. Instead,
folder names are secret, and their parent folder can be searched but not listed. Tasks mount it read-only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from minicluster.errors import MiniclusterError
from minicluster.runtime.node.stream import DataTree, Stat
from minicluster.runtime.paths import write_whole
from minicluster.wire import FILE_BYTES, DataManifest, DataOrder

SETS = "sets"
_HIDDEN = 0o311
_NAME = re.compile("[A-Za-z0-9]+")
_RESERVE = 0.05
"""Fraction of the disk and of its inodes that the cache always leaves free."""
_RESERVE_AT_MOST_BYTES = 10_000_000_000


class NoRoom(MiniclusterError):
    """A data set does not fit into the cache. passing: it may fit after other jobs end."""

    def __init__(self, message: str, hint: str, passing: bool) -> None:
        super().__init__(message, hint)
        self.passing = passing


@dataclass(frozen=True)
class CachedDataSet:
    """A data set in the cache, complete or not."""

    folder: str
    size_bytes: int
    files: int
    used_at: float
    complete: bool

    @property
    def room_bytes(self) -> int:
        """Its size on disk in bytes, with at least 4 KB for each file."""
        return _room_bytes(self.size_bytes, self.files)


class Cache:
    """A node's cache. limit_bytes: 0: the whole disk except for the reserve. Methods block.

    former_index: name of the index of an earlier release, in which all nodes had the same token. It comes
    from the job service; raises ValueError if it leads out of the cache.
    """

    def __init__(self, root: Path, token: str, limit_bytes: int = 0, former_index: str = "") -> None:
        if former_index and not _NAME.fullmatch(former_index):
            raise ValueError(f"{former_index[:80]!r} is no name of an index of the cache")
        self._sets = root / SETS
        self._former_index = former_index
        name = hmac.new(token.encode(), b"index", hashlib.sha256).hexdigest()[:40]
        self._index = self._sets / name
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()

    def open(self) -> None:
        """Create missing folders."""
        self._sets.mkdir(parents=True, exist_ok=True)
        self._sets.chmod(_HIDDEN)
        former = self._sets / self._former_index
        if self._former_index and former.is_dir() and not self._index.exists():
            former.rename(self._index)
        self._index.mkdir(mode=0o700, exist_ok=True)

    def folder(self, name: str) -> Path:
        return self._sets / name

    def part(self, name: str) -> Path:
        """Return the folder for an incomplete data set."""
        return self._sets / f"{name}.part"

    def entries(self) -> list[CachedDataSet]:
        """Return all data sets, the least recently used first."""
        found = [self._entry(path) for path in self._index.glob("*.size")]
        return sorted(found, key=lambda entry: entry.used_at)

    @property
    def used_bytes(self) -> int:
        return sum(entry.room_bytes for entry in self.entries())

    @property
    def limit_bytes(self) -> int:
        """The cache's current limit."""
        room = self._room_on_disk_bytes()
        return min(self._limit_bytes or room, room)

    def _room_on_disk_bytes(self) -> int:
        disk = shutil.disk_usage(self._sets)
        # A quota, or blocks reserved for root: what this user can have is less than the disk's total.
        reserve = min(int((disk.used + disk.free) * _RESERVE), _RESERVE_AT_MOST_BYTES)
        return max(0, self.used_bytes + disk.free - reserve)

    def spare_files(self) -> float:
        """Return how many more files the disk can hold."""
        disk = os.statvfs(self._sets)
        # File systems without a limit of inodes report 0.
        return disk.f_favail - disk.f_files * _RESERVE if disk.f_files else math.inf

    def make_room(self, order: DataOrder, in_use: Collection[str]) -> None:
        """Evict the least recently used data sets as needed, and reserve space. Raises NoRoom."""
        with self._lock:
            if not self._size(order.folder).exists():
                self._make_room(order, in_use)

    def _make_room(self, order: DataOrder, in_use: Collection[str]) -> None:
        limit, needed = self.limit_bytes, _room_bytes(order.size_bytes, order.files)
        others = self.entries()
        held = sum(entry.room_bytes for entry in others if entry.folder in in_use)
        if held + needed > limit:
            full_disk = not self._limit_bytes or limit < self._limit_bytes
            raise _no_room(order, needed, held, limit, full_disk)
        if order.files > self.spare_files() + sum(one.files for one in others if one.folder not in in_use):
            message = f"{order.name} has {order.files:,} files, more than the node's disk has inodes to spare"
            hint = "Pack them: many samples in one file are read faster, too."
            raise NoRoom(message, hint, passing=held > 0)
        used = sum(entry.room_bytes for entry in others)
        for entry in others:
            too_much = used + needed > limit or order.files > self.spare_files()
            if too_much and entry.folder not in in_use:
                self.remove(entry.folder)
                used -= entry.room_bytes
        write_whole(self._size(order.folder), f"{order.size_bytes} {order.files}".encode())

    def remove(self, folder: str) -> None:
        """Remove a data set; remove its index file last."""
        self._file(folder, "stats").unlink(missing_ok=True)
        for root in (self.folder(folder), self.part(folder)):
            for path, _, _ in os.walk(root):
                Path(path).chmod(0o700)
            shutil.rmtree(root, ignore_errors=True)
        self._file(folder, "manifest").unlink(missing_ok=True)
        self._size(folder).unlink(missing_ok=True)

    def touch(self, folder: str) -> None:
        """Record that a data set is used now."""
        os.utime(self._size(folder))

    def manifest(self, order: DataOrder) -> DataManifest | None:
        """Return a data set's manifest if the cache has it and its hash is right."""
        path = self._file(order.folder, "manifest")
        data = path.read_bytes() if path.exists() else b""
        sound = hashlib.sha256(data).hexdigest() == order.manifest_sha256
        return DataManifest.model_validate_json(data) if sound else None

    def keep_manifest(self, order: DataOrder, data: bytes) -> DataManifest:
        write_whole(self._file(order.folder, "manifest"), data)
        return DataManifest.model_validate_json(data)

    def touched(self, order: DataOrder, tree: DataTree) -> list[int] | None:
        """Return the numbers of files that changed since the data set was complete; None if it never was."""
        try:
            known: list[Stat] = [
                tuple(one) for one in json.loads(self._file(order.folder, "stats").read_bytes())
            ]
        except (OSError, ValueError, TypeError):
            return None
        if not tree.root.is_dir():
            return None
        return [number for number, now in enumerate(tree.stats()) if now is None or now != known[number]]

    def complete(self, order: DataOrder, stats: Sequence[Stat | None]) -> None:
        """Record the files' states, and give the data set its final name."""
        write_whole(self._file(order.folder, "stats"), json.dumps(stats).encode())
        if not self.folder(order.folder).is_dir():
            self.part(order.folder).rename(self.folder(order.folder))

    def _entry(self, path: Path) -> CachedDataSet:
        folder, stat = path.stem, path.stat()
        size_bytes, files, *_ = *map(int, path.read_text().split()), 0  # once there was no second number
        return CachedDataSet(folder, size_bytes, files, stat.st_mtime, self.folder(folder).is_dir())

    def _size(self, folder: str) -> Path:
        return self._file(folder, "size")

    def _file(self, folder: str, kind: str) -> Path:
        return self._index / f"{folder}.{kind}"


def _room_bytes(size_bytes: int, files: int) -> int:
    return max(size_bytes, files * FILE_BYTES)


def _no_room(
    order: DataOrder, needed_bytes: int, held_bytes: int, limit_bytes: int, full_disk: bool
) -> NoRoom:
    many = f" in {order.files:,} files, 4 KB for each at least" if needed_bytes > order.size_bytes else ""
    needs = f"{order.name} has {megabytes(needed_bytes)}{many}"
    holds = f"the node's cache holds at most {megabytes(limit_bytes)}"
    hint = "An admin can give the cache more: `up --data-cache`, or LocalEngine.data_cache_bytes."
    if full_disk:
        holds += " on its disk"
        hint = "An admin can free space on the node's disk: the cache takes what is free, but for a reserve."
    if needed_bytes > limit_bytes:
        return NoRoom(f"{needs}, and {holds}", hint, passing=False)
    return NoRoom(
        f"{needs}, {holds}, and {megabytes(held_bytes)} are in use by other jobs", hint, passing=True
    )


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB" if size_bytes >= 1e6 else f"{size_bytes:,} bytes"
