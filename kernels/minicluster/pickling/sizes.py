"""Sizes in words, and a limit that `wire` and `pickling` share: `pickling` does not import `wire`."""

from __future__ import annotations

MOST_PARTS = 1000
"""The most parts of one job's names. The job's row and its orders hold the hash of each."""


def readable_size(size_bytes: float) -> str:
    """Return a size for people: 512 bytes, 3.2 MB."""
    for unit in ("bytes", "KB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} GB"
