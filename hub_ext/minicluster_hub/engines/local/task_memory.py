"""Where tasks of this machine keep snapshots in memory. It outlives them, so it is removed after each."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection
from pathlib import Path

VARIABLE = "MINICLUSTER_MEMORY"
"""The environment variable by which an agent knows its folder."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - memory, not a folder for files of anybody


class TaskMemory:
    """The folders of one cluster's tasks: other clusters on this machine have others."""

    def __init__(self, tasks_root: Path) -> None:
        digest = hashlib.sha256(str(tasks_root).encode()).hexdigest()[:12]
        self._prefix = f"minicluster-{digest}-"

    def folder(self, task_id: int) -> Path:
        return _SHARED_MEMORY / f"{self._prefix}{task_id}"

    def remove(self, task_id: int) -> None:
        shutil.rmtree(self.folder(task_id), ignore_errors=True)

    def sweep(self, alive: Collection[int]) -> None:
        """Remove what ended tasks left."""
        for folder in _SHARED_MEMORY.glob(f"{self._prefix}*"):
            number = folder.name.removeprefix(self._prefix)
            if number.isdecimal() and int(number) not in alive:
                shutil.rmtree(folder, ignore_errors=True)
