"""Which notebook image belongs to this hub image: noted in it when both were published."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_FILE = Path("share", "minicluster", "published.json")


def notebook_of_this_release(prefix: Path | None = None) -> str:
    """Return the notebook image's reference; "" where none is noted."""
    try:
        return str(json.loads(((prefix or Path(sys.prefix)) / _FILE).read_text())["notebook"])
    except (OSError, ValueError, KeyError):
        return ""
