"""Chooses the container to end when a node's disk is nearly full: pure.

As Kubernetes under node pressure, it ends the container that filled the disk in the last minutes, one at a
time. Only tenants' containers are considered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from minicluster_hub.engines.swarm.names import NAME_LABEL, OWNER_LABEL, ROLE_LABEL

TENANTS = ("task", "server")
"""The roles of containers that run users' code; not those that only connect ranks."""
RESERVE_ENV, VOLUMES_ENV = "MINICLUSTER_DISK_RESERVE", "MINICLUSTER_LOCAL_HOMES"
VOLUME_DIR = "/srv/volume"
"""The mount of an empty volume: it shows the free space of the volumes' disk."""
_GB = 10**9
_SHARE, _LEAST_BYTES, _MOST_BYTES = 20, _GB, 10 * _GB
WINDOW_S = 300.0
"""Only use within these last seconds counts as filling the disk."""
MUCH = 20
"""A container that used less than reserve / MUCH is spared: others may have filled the disk long ago."""
_SEEN = 10
"""So is one that used less than 1/10 of the lost space: most of that was then taken unseen (`fallocate`)."""
KILL_AFTER_S, REMOVE_AFTER_S, SETTLE_S = 10.0, 40.0, 10.0
"""KILL, REMOVE: after DISK_FULL_SIGNAL. SETTLE: time for space to become free before the next eviction."""
RETURNS_S = 120.0
"""Longest wait while space still becomes free: removing a million files takes time."""
_INODE_IN_MEMORY_BYTES = 1024
"""About the kernel memory of a new file: ext4's inode and its directory entry."""


class Unit(StrEnum):
    """A unit of space that a disk may run out of."""

    BYTES = "bytes"
    INODES = "inodes"

    def readable(self, amount: int) -> str:
        return f"{amount / 1e9:.1f} GB" if self is Unit.BYTES else f"{amount:,} inodes"


def reserve_bytes(chosen_bytes: int, total_bytes: int) -> int:
    """Return the bytes to leave free. chosen_bytes: the choice of `up`; 0: a share of the disk."""
    usual = min(max(total_bytes // _SHARE, _LEAST_BYTES), _MOST_BYTES)
    return chosen_bytes or min(usual, total_bytes // 4)


def reserve_inodes(total_inodes: int) -> int:
    return total_inodes // _SHARE


@dataclass(frozen=True, slots=True)
class Disk:
    """The free space of a disk, in bytes or in inodes.

    reserve: the amount to leave free. lost: how far `free` is below its maximum of the last minutes.
    """

    free: int
    reserve: int
    lost: int = 0
    unit: Unit = Unit.BYTES

    def __str__(self) -> str:
        words = "less than" if self.low else "at least"
        free, reserve = self.unit.readable(self.free), self.unit.readable(self.reserve)
        return f"{free} of the disk are free, {words} the reserve of {reserve}"

    @property
    def low(self) -> bool:
        return self.free < self.reserve

    @property
    def nearly_low(self) -> bool:
        """Whether to measure which container fills it."""
        return self.free < 2 * self.reserve

    @property
    def in_need(self) -> bool:
        return self.free < self.reserve // 2


class FreeSpace:
    """The free space of a disk over the last minutes, in bytes or in inodes."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def lost(self, now: float, free: int) -> int:
        """Add the present free space; return how far it is below the maximum of the window."""
        self._seen.append((now, free))
        while self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()
        return max(before for _, before in self._seen) - free

    def forget(self) -> None:
        """Start over: the container that took the lost space is gone."""
        self._seen.clear()


@dataclass(frozen=True, slots=True)
class Use:
    """The kernel's counts for a container; both are 0 with version 1 of control groups.

    written_bytes: written to disks since its start. slab_bytes: kernel memory, mostly for files that it made
    or read lately.
    """

    written_bytes: int = 0
    slab_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """A user's container at one moment.

    created_at: in seconds since the epoch. layer_bytes: its writable layer, which is removed with it.
    volume_bytes: its own volumes; None while their size is unknown.
    """

    id: str
    name: str
    owner: str
    created_at: float
    running: bool = True
    layer_bytes: int = 0
    volume_bytes: int | None = None
    use: Use = field(default_factory=Use)

    def __str__(self) -> str:
        return f"{self.name} of {self.owner}"


def tenant_of(raw: Mapping[str, Any], volumes: Mapping[str, int], used: Mapping[str, Use]) -> Tenant | None:
    """Parse one of the engine's containers; None if it is not a tenant's.

    volumes: known sizes by name. used: by container id.
    """
    labels = raw.get("Labels") or {}
    if labels.get(ROLE_LABEL) not in TENANTS:
        return None
    mounts = [one for one in raw.get("Mounts") or () if one.get("Type") == "volume" and one.get("RW")]
    sizes = [volumes[one["Name"]] for one in mounts if one.get("Name") in volumes]
    return Tenant(
        id=str(raw["Id"]),
        name=str(labels.get(NAME_LABEL, "")),
        owner=str(labels.get(OWNER_LABEL, "")),
        created_at=float(raw.get("Created") or 0),
        running=raw.get("State") == "running",
        layer_bytes=int(raw.get("SizeRw") or 0),
        volume_bytes=sum(sizes) if sizes else None,
        use=used.get(str(raw["Id"]), Use()),
    )


def use_of(stats: Mapping[str, Any]) -> Use:
    """Parse the engine's statistics of a container.

    A byte passes through several devices (LVM on RAID on a disk), so only the largest count is used.
    """
    memory = (stats.get("memory_stats") or {}).get("stats") or {}
    entries = (stats.get("blkio_stats") or {}).get("io_service_bytes_recursive") or ()
    written = (int(one.get("value", 0)) for one in entries if str(one.get("op", "")).lower() == "write")
    return Use(max(written, default=0), int(memory.get("slab_reclaimable", 0)))


@dataclass(frozen=True, slots=True)
class Growth:
    """A container's use within the window.

    stored_bytes: growth of its files. inodes: about how many files it made or read.
    """

    stored_bytes: int = 0
    written_bytes: int = 0
    inodes: int = 0


class UsageHistory:
    """The use of tenants in the last minutes."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, Tenant]]] = {}

    def add(self, now: float, tenants: Iterable[Tenant]) -> None:
        seen: dict[str, deque[tuple[float, Tenant]]] = {}
        for one in tenants:
            past = self._seen.get(one.id, deque())
            past.append((now, one))
            while past[0][0] < now - WINDOW_S:
                past.popleft()
            seen[one.id] = past
        self._seen = seen

    def growth(self, now: float, tenant: Tenant) -> Growth:
        """Return the growth since the start of the window, or since the container was created."""
        past = [one for _, one in self._seen.get(tenant.id, ())]
        if not past:
            return Growth()
        new = tenant.created_at > now - WINDOW_S
        layer, use = (0, Use()) if new else (past[0].layer_bytes, past[0].use)
        before = next((one.volume_bytes for one in past if one.volume_bytes is not None), None)
        volume = 0 if before is None or tenant.volume_bytes is None else tenant.volume_bytes - before
        stored = max(0, tenant.layer_bytes - layer) + max(0, volume)
        written = max(0, tenant.use.written_bytes - use.written_bytes)
        slab = max(0, tenant.use.slab_bytes - use.slab_bytes)
        return Growth(stored, written, slab // _INODE_IN_MEMORY_BYTES)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The container to end, and the reason for a log. a_guess: no container was seen to fill the disk."""

    tenant: Tenant
    why: str
    a_guess: bool = False


def choose(now: float, disk: Disk, tenants: Sequence[Tenant], history: UsageHistory) -> Verdict | None:
    """Return the container to end: the one that used most of the scarce unit; in need, else the newest.

    Some use is not counted for any container: blocks that are reserved and not written, and files on kernels
    that do not count memory by container. The platform fails without free bytes or inodes, so in need the
    newest container is ended for such use, and then the next newest.
    """
    if not disk.low:
        return None
    running = [one for one in tenants if one.running]
    least = max(1, disk.reserve // MUCH)
    # Growth does not include space lost before the disk was nearly low: it was not measured then.
    much = max(least, min(disk.lost, 2 * disk.reserve) // _SEEN)
    for used, words in _measures(now, disk, running, history):
        worst = max(running, key=lambda one: used[one.id], default=None)
        if worst is not None and used[worst.id] >= much:
            return Verdict(worst, f"{words} {disk.unit.readable(used[worst.id])}")
    if running and disk.in_need and disk.lost >= least:
        newest = max(running, key=lambda one: one.created_at)
        return Verdict(
            newest, f"{disk.unit.readable(disk.lost)} went unseen, and it is the newest", a_guess=True
        )
    return None


def _measures(
    now: float, disk: Disk, running: Sequence[Tenant], history: UsageHistory
) -> Iterator[tuple[dict[str, int], str]]:
    """Yield how much each container used, by one measure after the other, and words for the measure.

    Bytes: growth of files, then bytes written (this finds a container that fills a removed but open file);
    in need, the bytes that its end frees. Inodes: from the kernel's memory for files.
    """
    growth = {one.id: history.growth(now, one) for one in running}
    if disk.unit is Unit.INODES:
        yield {one: of.inodes for one, of in growth.items()}, "it made or read about"
        return
    yield {one: of.stored_bytes for one, of in growth.items()}, "its files grew by"
    yield {one: of.written_bytes for one, of in growth.items()}, "it wrote"
    if disk.in_need:
        yield {one.id: one.layer_bytes for one in running}, "its end gives back"


class EvictionStep(StrEnum):
    """The steps against a container, from mild to harsh."""

    ASK = "ending"
    KILL = "killing"
    REMOVE = "removing"


@dataclass(slots=True)
class Eviction:
    """Ends one container at a time, in steps from mild to harsh.

    explained: the container that filled the disk is just gone. Others are not blamed for data that it left.
    """

    explained: bool = False
    _id: str = ""
    _since: float = 0.0
    _guessed: bool = False
    _quiet_until: float = field(default=float("-inf"))
    _returns_until: float = field(default=float("-inf"))
    _left: Disk | None = None

    @property
    def under_way(self) -> bool:
        return bool(self._id)

    def next(
        self, now: float, disk: Disk, tenants: Sequence[Tenant], history: UsageHistory
    ) -> tuple[EvictionStep, Verdict] | None:
        """Return the step to take now and its container; None: no step."""
        self.explained = False
        before, self._left = self._left, disk
        if self._id:
            return self._further(now, tenants)
        returns = before is not None and before.unit is disk.unit and before.free < disk.free
        if now < self._quiet_until or (now < self._returns_until and returns):
            return None
        verdict = choose(now, disk, tenants, history)
        if verdict is None:
            return None
        self._id, self._since, self._guessed = verdict.tenant.id, now, verdict.a_guess
        return EvictionStep.ASK, verdict

    def _further(self, now: float, tenants: Sequence[Tenant]) -> tuple[EvictionStep, Verdict] | None:
        tenant = next((one for one in tenants if one.id == self._id), None)
        if tenant is None:
            self._id, self._quiet_until, self._returns_until = "", now + SETTLE_S, now + RETURNS_S
            self.explained = not self._guessed
            return None
        waited_s = now - self._since
        if waited_s >= REMOVE_AFTER_S:  # Removing a dead container frees its space.
            return EvictionStep.REMOVE, Verdict(tenant, "nobody removed it")
        if waited_s >= KILL_AFTER_S and tenant.running:
            return EvictionStep.KILL, Verdict(tenant, "it did not end by itself")
        return None
