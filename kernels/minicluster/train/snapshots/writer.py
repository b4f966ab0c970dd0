"""Writes snapshots in the background, one at a time, and measures what they cost."""

from __future__ import annotations

import sys
import threading
import time

from minicluster.train.snapshots import files
from minicluster.train.snapshots.store import Key, Shelf
from minicluster.train.snapshots.state import Parts, Stage


class Writer:
    """One rank's writer. `cost_s` is what the newest finished snapshot took off the training.

    That is the time for which the cell waited, and the CPU time of the writing: on a machine without
    a core to spare it is missing elsewhere.
    """

    def __init__(self, shelf: Shelf) -> None:
        self.cost_s = 0.0
        self._shelf = shelf
        self._stage = Stage()
        self._thread: threading.Thread | None = None
        self._complained = False

    def write(self, parts: Parts, key: Key, world_size: int, keep: int, began: float) -> None:
        """Copy the state and write the copy in the background. `began`: when the cell's wait began."""
        self.wait()
        copies, rest = self._stage.copy(parts.tensors), parts.rest
        size_bytes, waited_s = parts.size_bytes, time.perf_counter() - began

        def work() -> None:
            cpu_s = time.thread_time()
            try:
                with self._shelf.adding(key, world_size, keep, size_bytes) as folder:
                    files.write(folder, copies, rest)
            except Exception as error:
                self._complain(error)
            self.cost_s = waited_s + time.thread_time() - cpu_s

        # No daemon: the last snapshot of a cell is finished before its rank leaves.
        self._thread = threading.Thread(target=work, name="minicluster-snapshot")
        self._thread.start()

    def wait(self) -> None:
        """Wait until what was begun is written."""
        if self._thread is not None:
            self._thread.join()

    def _complain(self, error: Exception) -> None:
        """Say once that there are no snapshots: training goes on without."""
        if not self._complained:
            self._complained = True
            print(f"mc.checkpoint: no snapshot was kept. {error}", file=sys.stderr)  # noqa: T201
