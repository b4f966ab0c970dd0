"""`run eviction`, on each node: ends the tenant's container that fills the disk, before it is full.

It holds the engine's socket, so it listens to nothing, sends nothing and reads nothing that tenants write:
what it knows is the engine's word. A job's agent is told by a signal, and says by itself why the job ends.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from minicluster_hub.cluster.eviction.rules import (
    RESERVE_ENV,
    VOLUME_DIR,
    VOLUMES_ENV,
    Disk,
    Room,
    Unit,
    reserve_bytes,
    reserve_inodes,
)

if TYPE_CHECKING:
    from minicluster_hub.cluster.eviction.guard import Guard

_FOLDERS = ("/", VOLUME_DIR)
"""Where containers' layers lie, and where volumes do: often the same disk."""
_LOOK_S = 3.0
"""Nothing tells of a disk that gets full, so it is asked: a call of a microsecond."""

log = logging.getLogger(__name__)


def main() -> int:
    """Look every few seconds until told to end."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    chosen_bytes = int(os.environ.get(RESERVE_ENV) or 0)
    guard: Guard | None = None
    was_low = False
    rooms = {(folder, unit): Room() for folder in _FOLDERS for unit in Unit}
    while not ended.wait(_LOOK_S):
        disk = fullest(rooms, chosen_bytes, time.time())
        if disk.low != was_low:
            was_low = disk.low
            log.warning("%s", disk)
        if disk.nearly_low and guard is None:
            guard = _guard()
        if guard is not None and guard.look(time.time(), disk):
            for room in rooms.values():
                room.forget()
    return 0


def fullest(rooms: Mapping[tuple[str, Unit], Room], chosen_bytes: int, now: float) -> Disk:
    """Return what is left least of, measured by its reserve. rooms: by a folder on each disk, and by unit."""
    found: list[Disk] = []
    for (folder, unit), room in rooms.items():
        free, total = _counted(folder, unit)
        reserve = reserve_bytes(chosen_bytes, total) if unit is Unit.BYTES else reserve_inodes(total)
        if reserve:  # Some file systems have as many inodes as they like, and tell 0.
            found.append(Disk(free, reserve, room.lost(now, free), unit))
    return min(found, key=lambda one: one.free / one.reserve)


def _counted(folder: str, unit: Unit) -> tuple[int, int]:
    """Return what is free, and what there is in all."""
    told = os.statvfs(folder)
    if unit is Unit.BYTES:
        return told.f_bavail * told.f_frsize, told.f_blocks * told.f_frsize
    return told.f_favail, told.f_files


def _guard() -> Guard:
    """What asks the engine takes 30 MB, which a node with room does not need."""
    from minicluster_hub.cluster.daemon import Daemon
    from minicluster_hub.cluster.eviction.guard import Guard

    return Guard(Daemon.connect(), local_homes=os.environ.get(VOLUMES_ENV) == "1")
