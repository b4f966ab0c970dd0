"""Users' quotas on the service's disk: counted from the store's rows, checked before a file is written.

An upload counts before its first byte arrives: so two uploads at once cannot exceed a quota together.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from minicluster.wire import FILE_BYTES, KIND_NAMES, StorageKind
from minicluster_hub.storage.disk_space import DiskSpace
from minicluster_hub.store.storage.storage import StorageQueries

_LOOK_BYTES = 16 << 20
_READING_SHARE = 20
"""A sum is read again after 20 times as long as reading it took: reading takes at most 1/20 of the time."""
_VALID_S = 60.0
"""Least seconds that a sum is used: it becomes too low, since ranks' reports make rows of jobs grow."""
_REMEMBERED = 10_000
_HINT = (
    "`%distribute storage` shows what is largest; `%distribute storage rm JOB` removes what a job that is "
    "over keeps, `%distribute data rm NAME` a data set; or ask an admin for a larger quota (storage_gb)"
)


class OverQuota(Exception):
    """The write would exceed its owner's quota. code: the error's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, _HINT


@dataclass(frozen=True, slots=True)
class _CachedSum:
    """used: bytes by kind, as read from the store, and the bytes that came since; so never too low."""

    used: Counter[StorageKind]
    read_at: float
    took_s: float


class Storage:
    """limit_of: returns an owner's quota in bytes. data_limit_bytes: that of data sets; 0: no extra one."""

    def __init__(
        self, rows: StorageQueries, limit_of: Callable[[str], int], disk: DiskSpace, data_limit_bytes: int = 0
    ) -> None:
        self.disk = disk
        self.limit_of = limit_of
        self._rows = rows
        self._data_limit_bytes = data_limit_bytes
        self._sums: dict[str, _CachedSum] = {}
        self._coming: dict[str, Counter[StorageKind]] = {}
        self._files: Counter[str] = Counter()
        self._outputs: dict[int, int] = {}
        self._makes_room: list[Callable[[str], bool]] = []
        self.unwritten_bytes = 0
        """Bytes of all uploads that are not on the disk yet; only UploadReservation changes it."""

    def before_refusal(self, make_room: Callable[[str], bool]) -> None:
        """Have this called when an owner's quota is full. It returns whether it removed something."""
        self._makes_room.append(make_room)

    def reserve(
        self,
        owner: str,
        kind: StorageKind,
        size_bytes: int,
        sha256: str = "",
        *,
        new: bool = True,
        small: bool = False,
    ) -> UploadReservation:
        """Reserve room for a file that is to be uploaded. Raises OverQuota, DiskReserved.

        new: whether the owner does not have it yet. small: as in DiskSpace.check.
        """
        self.disk.check(self.unwritten_bytes + size_bytes, small=small)
        self.check(owner, kind, cost(size_bytes) if new else 0)
        return UploadReservation(self, owner, kind, size_bytes, sha256, small=small)

    def check(self, owner: str, kind: StorageKind, more_bytes: int, what: str = "") -> None:
        """Raise OverQuota if `more_bytes` exceed the owner's quota."""
        if not self._over(owner, kind, more_bytes):
            return
        cached = self._sums[owner]
        if time.monotonic() - cached.read_at > _READING_SHARE * cached.took_s:
            self.forget(owner)
        if self._over(owner, kind, more_bytes):
            self._ask_for_room(owner)
        if code := self._over(owner, kind, more_bytes):
            raise OverQuota(code, self._message(code, owner, kind, more_bytes))

    def _ask_for_room(self, owner: str) -> None:
        for make_room in self._makes_room:
            if make_room(owner):
                self.forget(owner)

    def counts_output(self, job_id: int, size_bytes: int) -> bool:
        """Return whether a job's output already counts at least `size_bytes`. Raises DiskReserved."""
        self.disk.check(self.unwritten_bytes, small=True)
        if job_id not in self._outputs:
            if len(self._outputs) >= _REMEMBERED:
                self._outputs.clear()
            self._outputs[job_id] = self._rows.output_bytes(job_id)
        return size_bytes <= self._outputs[job_id]

    def keep_output(self, owner: str, job_id: int, size_bytes: int) -> None:
        """Count a job's output with `size_bytes`. Raises OverQuota.

        It counts in steps of 1/8: otherwise each printed line would cost a transaction.
        """
        counted, rounded = self._rows.output_bytes(job_id), _rounded_up(size_bytes)
        self.check(owner, StorageKind.OUTPUT, rounded - counted)
        self._rows.set_output(owner, job_id, rounded)
        self.came(owner, StorageKind.OUTPUT, rounded - counted)
        self._outputs[job_id] = rounded

    def measure_outputs(self, job_ids: Sequence[int], measure: Callable[[int], int]) -> None:
        """Count the output of these jobs where an earlier release did not count it."""
        for job_id, owner in self._rows.uncounted_outputs(job_ids).items():
            self._rows.set_output(owner, job_id, measure(job_id))

    def coming_bytes(self, owner: str) -> int:
        """Return the bytes of an owner's present uploads."""
        return self._coming.get(owner, Counter()).total()

    def is_coming(self, sha256: str) -> bool:
        """Return whether a file is being uploaded, or has no row yet: it must not be removed."""
        return self._files[sha256] > 0

    def forget(self, owner: str) -> None:
        """Read an owner's sum again: something was removed."""
        self._sums.pop(owner, None)

    def forget_known(self) -> None:
        """Read all sums again: another service may have written until now."""
        self._sums.clear()

    def came(self, owner: str, kind: StorageKind, size_bytes: int) -> None:
        """Count bytes whose rows are stored now."""
        if owner in self._sums:
            self._sums[owner].used[kind] += size_bytes

    def on_its_way(self, owner: str, kind: StorageKind, more_bytes: int, sha256: str, files: int) -> None:
        """Count more or (negative) fewer bytes as being uploaded; for UploadReservation only."""
        coming = self._coming.setdefault(owner, Counter())
        coming[kind] += more_bytes
        self._files[sha256] += files
        if not self._files[sha256]:
            del self._files[sha256]
        if not +coming:
            del self._coming[owner]

    def _over(self, owner: str, kind: StorageKind, more_bytes: int) -> str:
        used = self._used(owner) + self._coming.get(owner, Counter())
        if used.total() + more_bytes > self.limit_of(owner):
            return "storage_quota"
        data = kind is StorageKind.DATA and self._data_limit_bytes
        return "data_limit" if data and used[kind] + more_bytes > data else ""

    def _used(self, owner: str) -> Counter[StorageKind]:
        cached = self._sums.get(owner)
        if cached is None or time.monotonic() - cached.read_at > max(
            _VALID_S, _READING_SHARE * cached.took_s
        ):
            began = time.monotonic()
            uses = self._rows.used(owner)
            ended = time.monotonic()
            used = Counter({kind: use.size_bytes for kind, use in uses.items()})
            self._sums[owner] = _CachedSum(used, ended, ended - began)
        return self._sums[owner].used

    def _message(self, code: str, owner: str, kind: StorageKind, more_bytes: int) -> str:
        coming, used = self._coming.get(owner, Counter()), self._used(owner)
        limit = f"your storage quota of {size_text(self.limit_of(owner))}"
        have = f"{size_text(used.total())} are used ({_by_kind(used)})"
        if code == "data_limit":
            limit = f"this cluster's limit of {size_text(self._data_limit_bytes)}"
            have = f"{size_text(used[kind])} are used"
        more = f"{size_text(more_bytes)} more of {KIND_NAMES[kind]}"
        way = f", and {size_text(coming.total())} are on their way" if coming.total() else ""
        return f"{more} would be over {limit}: {have}{way}"


class UploadReservation:
    """Room for a file during its upload. As a context it ends with the block, when the row is stored."""

    def __init__(
        self, storage: Storage, owner: str, kind: StorageKind, size_bytes: int, sha256: str, *, small: bool
    ) -> None:
        self._storage = storage
        self._owner, self._kind, self._sha256, self._small = owner, kind, sha256, small
        self._size_bytes = self._written_bytes = self._looked_at = 0
        self._open = True
        self._count(size_bytes, files=1)

    def grow(self, size_bytes: int) -> None:
        """Reserve room for `size_bytes` in all. Raises OverQuota, DiskReserved."""
        more = max(0, size_bytes - self._size_bytes)
        if more or size_bytes - self._looked_at >= _LOOK_BYTES:
            self._storage.disk.check(self._storage.unwritten_bytes + more, small=self._small)
            self._looked_at = size_bytes
        if more:
            self._storage.check(self._owner, self._kind, more)
            self._count(size_bytes)
        self._storage.unwritten_bytes -= size_bytes - self._written_bytes
        self._written_bytes = size_bytes

    def kept(self) -> None:
        """Note that the file's row is stored."""
        self._storage.came(self._owner, self._kind, cost(self._size_bytes))

    def close(self) -> None:
        """End the reservation; can be repeated."""
        if self._open:
            self._open = False
            self._storage.unwritten_bytes -= self._size_bytes - self._written_bytes
            self._storage.on_its_way(self._owner, self._kind, -cost(self._size_bytes), self._sha256, -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.kept()
        self.close()

    def _count(self, size_bytes: int, files: int = 0) -> None:
        before = 0 if files else cost(self._size_bytes)
        self._storage.on_its_way(self._owner, self._kind, cost(size_bytes) - before, self._sha256, files)
        self._storage.unwritten_bytes += size_bytes - self._size_bytes
        self._size_bytes = size_bytes


def cost(size_bytes: int) -> int:
    """Return the bytes that a file of this size counts for the quota."""
    return max(FILE_BYTES, size_bytes)


def _rounded_up(size_bytes: int) -> int:
    step = max(FILE_BYTES, 1 << max(0, size_bytes.bit_length() - 4))
    return -(-size_bytes // step) * step


def size_text(size_bytes: int) -> str:
    for unit, one in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size_bytes >= one:
            return f"{size_bytes / one:.3g} {unit}"
    return f"{size_bytes} bytes"


def _by_kind(used: Mapping[StorageKind, int]) -> str:
    ranked = sorted(used.items(), key=lambda one: -one[1])
    return (
        ", ".join(f"{KIND_NAMES[kind]} {size_text(size)}" for kind, size in ranked if size) or "nothing yet"
    )
