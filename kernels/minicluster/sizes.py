"""Sizes in words."""

from __future__ import annotations


def readable_size(size_bytes: float) -> str:
    """Write a size as people say it: 512 bytes, 3.2 MB."""
    for unit in ("bytes", "KB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} GB"
