"""Whether a task has room to write: a full disk else shows as some library's strange error."""

from __future__ import annotations

import shutil
from pathlib import Path

_LEAST_BYTES = 16 * 2**20


def trouble(folder: Path, least_bytes: int = _LEAST_BYTES) -> str:
    """Return in words that the disk of a folder, which need not be there yet, is full; "" if it is not."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(there).free
    return "" if free_bytes >= least_bytes else f"its disk is full ({free_bytes / 2**20:.0f} MB are free)"
