"""Sizes in words, and a limit that messages and pickles share: pickles are read where no messages are."""

from __future__ import annotations

MOST_PARTS = 1000
"""Parts of one job's names: each is a hash in its row and its orders."""


def readable_size(size_bytes: float) -> str:
    """Write a size as people say it: 512 bytes, 3.2 MB."""
    for unit in ("bytes", "KB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} GB"
