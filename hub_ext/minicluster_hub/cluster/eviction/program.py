"""`run eviction`, on each node: ends the tenant's container that fills the disk, before it is full.

It starts with the engine, and then removes once what a loss of power left on the node.

It has the engine's socket, so it listens to nothing, sends nothing and reads nothing that tenants write:
all its data is from the engine. A job's agent gets a signal, and reports by itself why the job ends.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
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
    FreeSpace,
    Unit,
    reserve_bytes,
    reserve_inodes,
)

if TYPE_CHECKING:
    from minicluster_hub.cluster.eviction.guard import Guard

_FOLDERS = ("/", VOLUME_DIR)
"""On the disk of containers' layers, and on the disk of volumes: often the same one."""
_LOOK_S = 3.0
"""Linux sends no event when a disk gets full, so it is polled: a call of a microsecond."""

_LOGS_READ_S = 60.0
"""So long after the start, the job service has read the logs of containers that ended."""

log = logging.getLogger(__name__)


def main() -> int:
    """Check every few seconds until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    chosen_bytes = int(os.environ.get(RESERVE_ENV) or 0)
    guard: Guard | None = None
    was_low = False
    clean_up = threading.Timer(_LOGS_READ_S, _remove_leftovers, [time.time()])
    clean_up.daemon = True
    clean_up.start()
    spaces = {(folder, unit): FreeSpace() for folder in _FOLDERS for unit in Unit}
    while not ended.wait(_LOOK_S):
        disk = fullest(spaces, chosen_bytes, time.time())
        if disk.low != was_low:
            was_low = disk.low
            log.warning("%s", disk)
        if disk.nearly_low and guard is None:
            guard = _guard()
        if guard is not None and guard.check(time.time(), disk):
            for space in spaces.values():
                space.forget()
    return 0


def _remove_leftovers(before: float) -> None:
    """Remove the containers that ended before, in a process whose memory is free afterwards."""
    words = [sys.executable, "-P", "-m", "minicluster_hub.cluster.eviction.leftovers", str(before)]
    subprocess.run(words, check=False)


def fullest(spaces: Mapping[tuple[str, Unit], FreeSpace], chosen_bytes: int, now: float) -> Disk:
    """Return the disk with the least free space relative to its reserve. spaces: by folder and unit."""
    found: list[Disk] = []
    for (folder, unit), space in spaces.items():
        free, total = _counted(folder, unit)
        reserve = reserve_bytes(chosen_bytes, total) if unit is Unit.BYTES else reserve_inodes(total)
        if reserve:  # File systems without a fixed number of inodes report 0.
            found.append(Disk(free, reserve, space.lost(now, free), unit))
    return min(found, key=lambda one: one.free / one.reserve)


def _counted(folder: str, unit: Unit) -> tuple[int, int]:
    """Return free and total space in a unit, without what is reserved for root or beyond a quota."""
    found = os.statvfs(folder)
    if unit is Unit.BYTES:
        usable = found.f_blocks - found.f_bfree + found.f_bavail
        return found.f_bavail * found.f_frsize, usable * found.f_frsize
    return found.f_favail, found.f_files


def _guard() -> Guard:
    """Return a guard. Imported here, since Docker's client takes 30 MB that a node with free space saves."""
    from minicluster_hub.cluster.daemon import Daemon
    from minicluster_hub.cluster.eviction.guard import Guard

    return Guard(Daemon.connect(), local_homes=os.environ.get(VOLUMES_ENV) == "1")
